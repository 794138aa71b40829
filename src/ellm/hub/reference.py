"""What a model reference means: a registry name, a path, or a Hugging Face repository."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ellm.errors import ModelNotFoundError
from ellm.hub.registry import DEFAULT_ALIAS, ModelEntry, find_entry, known_names, nearest_name

_HF_SCHEME = "hf://"
_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_QUANT = re.compile(r"[A-Za-z0-9_]{1,32}")


@dataclass(frozen=True, slots=True)
class HubReference:
    """A model in a Hugging Face repository.

    Attributes:
        repo: `organisation/name`.
        filename: The file inside it, or None to choose one.
        quant: The quantisation asked for, such as `Q4_K_M`, or None.
    """

    repo: str
    filename: str | None = None
    quant: str | None = None


def parse_reference(reference: str | None) -> ModelEntry | Path | HubReference:
    """Decide what a reference names; nothing is opened or fetched.

    A registry name wins over a file of that name in the working directory (`./name` reaches the
    file), an existing path wins over a repository.

    Args:
        reference: What the user typed; None means the default model.

    Raises:
        ModelNotFoundError: It is none of the three, with the nearest registry name.
    """
    text = DEFAULT_ALIAS if reference is None else reference.strip()
    if not text or "\0" in text:
        raise ModelNotFoundError(f"empty model reference: give a path or one of {known_names()}")
    entry = find_entry(text)
    if entry is not None:
        return entry
    if text.startswith(_HF_SCHEME):
        return _parse_hub(text.removeprefix(_HF_SCHEME), text)
    path = Path(text).expanduser()
    if _looks_like_path(text) or path.exists():
        return path
    if "/" in text:
        return _parse_hub(text, text)
    raise ModelNotFoundError(_unknown(text))


def _looks_like_path(text: str) -> bool:
    if text.startswith(("/", "./", "../", "~")) or text in (".", ".."):
        return True
    # Three parts ending in .gguf are organisation/repository/file; one or two are a path.
    return text.lower().endswith(".gguf") and text.count("/") < 2


def _parse_hub(text: str, original: str) -> HubReference:
    wanted = "organisation/repository[:QUANT] or organisation/repository/FILE.gguf"
    body, colon, quant = text.partition(":")
    parts = body.split("/")
    if len(parts) < 2 or not all(_SEGMENT.fullmatch(part) for part in parts[:2]):
        raise ModelNotFoundError(f"no model file {original!r}, and not a Hugging Face {wanted}")
    if colon and (not _QUANT.fullmatch(quant) or len(parts) > 2):
        raise ModelNotFoundError(f"{original!r}: {quant!r} is no quantisation; expected {wanted}")
    repo, filename = "/".join(parts[:2]), "/".join(parts[2:])
    if not filename:
        return HubReference(repo, quant=quant or None)
    if not filename.lower().endswith(".gguf") or not all(
        _SEGMENT.fullmatch(part) for part in parts[2:]
    ):
        raise ModelNotFoundError(f"no model file {original!r}, and not a Hugging Face {wanted}")
    return HubReference(repo, filename=filename)


def _unknown(text: str) -> str:
    near = nearest_name(text)
    hint = f" (did you mean {near!r}?)" if near else ""
    return (
        f"no model named {text!r}{hint}; known names: {known_names()}. "
        "A path or a Hugging Face organisation/repository works too."
    )
