"""What the directory of KV blocks holds, with the models' names, for people and as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ellm.cli.tables import aligned
from ellm.errors import EllmError, RequestError
from ellm.units import count_of, format_bytes, format_count

if TYPE_CHECKING:
    from ellm.kv.disk.page_index import Holding

# As of a commit: what a person reads and types; any beginning is taken.
SHORT_DIGITS = 12
_PAGE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Held:
    """What there is of one model in one KV type.

    Attributes:
        holding: The figures.
        model: Name of the model's file and KV type, None where it is not on this machine.
    """

    holding: Holding
    model: str | None

    @property
    def fingerprint(self) -> str:
        """The fingerprint as digits."""
        return self.holding.fingerprint.hex()

    @property
    def tokens(self) -> int:
        """Tokens of all pages; beginnings that texts share count once."""
        return self.holding.pages * _PAGE_TOKENS


def known_models() -> dict[bytes, str]:
    """Return the names of what the models on this machine keep, by fingerprint.

    A model that lies elsewhere, or whose file was touched, is not among them.
    """
    from ellm.config.cache import CacheConfig
    from ellm.config.engine import KV_TYPES
    from ellm.engine.reuse import prefix_config
    from ellm.formats.gguf import GgufFile
    from ellm.hub import local_models

    names: dict[bytes, str] = {}
    for path in local_models():
        with suppress(EllmError, OSError):
            fingerprint = GgufFile.open(path).fingerprint
            for kv_type in KV_TYPES:
                config = prefix_config(
                    CacheConfig(), model_fingerprint=fingerprint, kv_type=kv_type, block_bytes=1
                )
                if config is not None:
                    names[config.fingerprint] = f"{path.name}, {kv_type}"
    return names


def with_names(holdings: Sequence[Holding]) -> list[Held]:
    """Return holdings with the names of their models."""
    names = known_models() if holdings else {}
    return [Held(holding, names.get(holding.fingerprint)) for holding in holdings]


def chosen(held: Sequence[Held], fingerprint: str) -> Held:
    """Return the one whose fingerprint begins with some digits.

    Raises:
        RequestError: None does, or more than one.
    """
    found = [item for item in held if fingerprint and item.fingerprint.startswith(fingerprint)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(item.fingerprint[:SHORT_DIGITS] for item in held) or "none"
    number = "none" if not found else str(len(found))
    raise RequestError(
        f"{number} of the fingerprints begin with {fingerprint[:80]!r}; there are {known}"
    )


def listing(
    directory: Path, held: Sequence[Held], *, bytes_used: int, quota_bytes: int
) -> list[str]:
    """Return the lines of `ellm cache ls`."""
    lines = []
    if held:
        rows = [
            (
                item.fingerprint[:SHORT_DIGITS],
                format_count(item.holding.pages),
                format_count(item.tokens),
                format_bytes(item.holding.bytes_used),
                as_date(item.holding.last_used_seconds),
                item.model or "?",
            )
            for item in held
        ]
        head = ("fingerprint", "pages", "tokens", "bytes", "last used", "model, KV type")
        lines = [line.rstrip() for line in aligned([head, *rows])]
    pages = sum(item.holding.pages for item in held)
    return [
        *lines,
        f"{directory}: {count_of(pages, 'page')}, {format_bytes(bytes_used)} of "
        f"{format_bytes(quota_bytes)}",
    ]


def details(item: Held) -> list[str]:
    """Return the lines of `ellm cache show`."""
    holding = item.holding
    rows = (
        ("fingerprint", item.fingerprint),
        ("model", item.model or "none that is on this machine"),
        ("pages", f"{format_count(holding.pages)} of {_PAGE_TOKENS} tokens"),
        ("tokens", format_count(item.tokens)),
        ("on disk", format_bytes(holding.bytes_used)),
        ("a block", format_bytes(holding.block_bytes)),
        ("first", as_date(holding.created_seconds)),
        ("last used", as_date(holding.last_used_seconds)),
    )
    return [f"{name:<12} {text}" for name, text in rows]


def values(item: Held) -> dict[str, Any]:
    """Return one entry for JSON."""
    holding = item.holding
    return {
        "fingerprint": item.fingerprint,
        "model": item.model,
        "pages": holding.pages,
        "tokens": item.tokens,
        "bytes": holding.bytes_used,
        "block_bytes": holding.block_bytes,
        "created_seconds": holding.created_seconds,
        "last_used_seconds": holding.last_used_seconds,
    }


def as_date(seconds: float) -> str:
    """Return a time as people read it; a damaged index may hold one that no calendar has."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "?"
