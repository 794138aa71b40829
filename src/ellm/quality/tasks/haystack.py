"""Lines that needles are hidden among."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Self

# A line is a unit of size: prompts of 1,024 tokens are to be filled to 5 %.
MAX_LINE_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Haystack:
    """A text as lines.

    Attributes:
        name: Where it is from.
        lines: Its lines that are not blank, long ones cut; at least one.
    """

    name: str
    lines: tuple[str, ...]

    @classmethod
    def from_text(cls, name: str, text: str) -> Self:
        """Cut a text into lines; a blank one becomes a single full stop."""
        lines = [part for line in text.splitlines() if line.strip() for part in _cut(line)]
        return cls(name, tuple(lines) or (".",))

    def take(self, random: Random, count: int) -> list[str]:
        """Return so many lines in a row from anywhere; after the last comes the first."""
        start = random.randrange(len(self.lines))
        return [self.lines[(start + index) % len(self.lines)] for index in range(count)]


def insert(lines: Sequence[str], needles: Sequence[tuple[float, str]]) -> list[str]:
    """Return the lines with each (position in 0..1, needle) between two of them.

    A position is a share of the characters, whose number is nearer to that of tokens than the
    number of lines is.
    """
    starts = [0, *itertools.accumulate(len(line) + 1 for line in lines)]
    filled = list(lines)
    # From the end on, so that places before are still right.
    for position, needle in sorted(needles, key=lambda pair: pair[0], reverse=True):
        filled.insert(_nearest(starts, position * starts[-1]), needle)
    return filled


def _nearest(starts: Sequence[int], wanted: float) -> int:
    """Return the index of the number that is nearest to `wanted`, of ascending ones from 0."""
    after = bisect.bisect_left(starts, wanted)
    if after == 0 or (after < len(starts) and starts[after] - wanted < wanted - starts[after - 1]):
        return after
    return after - 1


def _cut(line: str) -> Iterator[str]:
    """Yield the pieces of a line, cut between words where there are any."""
    line = line.rstrip()
    start = 0
    while len(line) - start > MAX_LINE_CHARACTERS:
        end = line.rfind(" ", start + 1, start + MAX_LINE_CHARACTERS + 1)
        if end < 0 or not line[start:end].strip():
            end = start + MAX_LINE_CHARACTERS
        yield line[start:end]
        start = end
    yield line[start:]
