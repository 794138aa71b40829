"""Texts that are on every machine: Python's own sources, licences, and made-up sentences."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ellm.quality.tasks import words

LICENCES = Path("/usr/share/common-licenses")
# Texts of one family, so that the later ones repeat the earlier ones with small changes.
_LICENCE_NAMES = (
    *("Artistic", "GPL-1", "LGPL-2.1", "GPL-2", "LGPL-2", "GPL-3", "LGPL-3"),
    *("GFDL-1.2", "GFDL-1.3", "MPL-1.1", "MPL-2.0", "Apache-2.0", "CC0-1.0"),
)
# As much as the longest contexts take, and a start anywhere in it.
MAX_CODE_CHARACTERS = 4_000_000
NOISE_SENTENCES = 5_000
_VERBS = words.listed("crosses finds follows guards hears holds leaves likes meets passes sees")
_PLACES = words.listed("above behind below beside beyond near opposite under")


@dataclass(frozen=True, slots=True)
class Text:
    """A text with the name that reports give it."""

    name: str
    content: str


def default_haystacks() -> list[Text]:
    """Return prose and code: licences or else made-up sentences, and Python's sources."""
    prose = licences() or noise()
    code = python_sources()
    return [prose, code] if code else [prose]


def python_sources() -> Text | None:
    """Return the standard library's modules in the order of their names, if they are there."""
    folder = Path(sysconfig.get_path("stdlib"))
    content = _joined(sorted(folder.glob("*.py")), MAX_CODE_CHARACTERS)
    return Text("code", content) if content else None


def licences(folder: Path = LICENCES) -> Text | None:
    """Return licences, among them several versions of one, if they are there."""
    content = _joined((folder / name for name in _LICENCE_NAMES), MAX_CODE_CHARACTERS)
    return Text("licences", content) if content else None


def noise() -> Text:
    """Return sentences without a story, the same ones every time."""
    random = Random("noise")

    def thing() -> str:
        return f"the {random.choice(words.ADJECTIVES)} {random.choice(words.NOUNS)}"

    sentences = (
        f"{thing()} {random.choice(_VERBS)} {thing()} {random.choice(_PLACES)} {thing()}."
        for _ in range(NOISE_SENTENCES)
    )
    return Text("noise", "\n".join(sentence.capitalize() for sentence in sentences))


def _joined(paths: Iterable[Path], most_characters: int) -> str:
    """Return what can be read of the files, up to so many characters."""
    parts: list[str] = []
    total = 0
    for path in paths:
        try:
            part = path.read_text(encoding="utf-8", errors="replace")
        except OSError:  # absent, or a link to nowhere: a smaller text does as well
            continue
        parts.append(part)
        total += len(part)
        if total >= most_characters:
            break
    return "\n\n".join(parts)
