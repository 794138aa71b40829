"""The notes that the needle tasks hide in a text."""

from __future__ import annotations

from collections.abc import Sequence

from ellm.quality.tasks.haystack import insert
from ellm.quality.tasks.task import Setting

_INTRODUCTION = "Notes about access codes are hidden in the following text. Remember them.\n\n"


def needle(name: str, code: str) -> str:
    """Return the line that gives a name its code."""
    return f"Note: an access code of {name} is {code}."


def hidden(setting: Setting, size: int, needles: Sequence[tuple[float, str]]) -> str:
    """Return a document of `size` lines of the haystack with the needles at their positions."""
    # A source of its own: the filler must not hang on how many names were drawn.
    lines = setting.haystack.take(setting.random(), size)
    return _INTRODUCTION + "\n".join(insert(lines, needles))
