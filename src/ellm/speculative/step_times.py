"""How long a step takes by rows and depth: measured before the first chain, refined since."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

# A new time counts this much; one that is far off, as when the machine was busy, less.
NEW_SHARE = 0.2
FARTHEST = 2.0
# A time is believed for so many steps, twice as many with every time that agrees, up to the most:
# the machine may have been busy when it was taken, and rows that seem slow are never tried again
# otherwise.
FIRST_STEPS = 32
MOST_STEPS = 512


@dataclass(slots=True)
class _Cell:
    seconds: float
    step: int
    times: int = 1


class StepTimes:
    """Predicts the seconds of a step.

    Depths are kept in buckets of a quarter of themselves, modes of attention apart. What was never
    run at a depth is scaled from what was, in the proportion of the first table.
    """

    def __init__(self) -> None:
        """Know nothing: rows are free until a time is known."""
        self._first: dict[int, float] = {}
        self._cells: dict[tuple[object, int], dict[int, _Cell]] = {}
        self._steps = 0

    def start(self, seconds: Mapping[int, float]) -> None:
        """Take the times of a shallow step by its number of rows."""
        self._first = dict(sorted(seconds.items()))

    def observe(self, mode: object, depth_tokens: int, rows: int, seconds: float) -> None:
        """Take the time that a step took at this mean depth of its rows."""
        self._steps += 1
        cells = self._cells.setdefault((mode, _bucket(depth_tokens)), {})
        known = cells.get(rows)
        if known is None or self._is_stale(known):
            expected = self.predict(mode, depth_tokens, rows)
            cells[rows] = _Cell(_near(seconds, expected) if self._first else seconds, self._steps)
            return
        known.seconds += NEW_SHARE * (_near(seconds, known.seconds) - known.seconds)
        known.step = self._steps
        known.times += 1

    def predict(self, mode: object, depth_tokens: int, rows: int) -> float:
        """Return the seconds of a step; only their proportions mean anything at first."""
        bucket = _bucket(depth_tokens)
        near = self._nearest(mode, bucket, rows)
        if near is None:
            return self._shallow(rows)
        known_rows, seconds = near
        return seconds * self._shallow(rows) / self._shallow(known_rows)

    def _nearest(self, mode: object, bucket: int, rows: int) -> tuple[int, float] | None:
        """Return rows and time of the cell closest to what is asked: in depth, then in rows."""
        found: tuple[int, int, int, float] | None = None
        for (cell_mode, cell_bucket), cells in self._cells.items():
            if cell_mode != mode:
                continue
            for cell_rows, cell in cells.items():
                if cell_rows != 1 and self._is_stale(cell):
                    continue
                key = (abs(cell_bucket - bucket), abs(cell_rows - rows), cell_rows, cell.seconds)
                if found is None or key < found:
                    found = key
        return None if found is None else (found[2], found[3])

    def _is_stale(self, cell: _Cell) -> bool:
        return self._steps - cell.step > min(MOST_STEPS, FIRST_STEPS << min(cell.times - 1, 8))

    def _shallow(self, rows: int) -> float:
        """Return the first table's time, on a line between or beyond its entries."""
        if not self._first:
            return 1.0
        known = list(self._first)
        if rows in self._first:
            return self._first[rows]
        above = next((i for i, count in enumerate(known) if count > rows), len(known) - 1)
        if above == 0:
            return self._first[known[0]]
        low, high = known[above - 1], known[above]
        slope = (self._first[high] - self._first[low]) / (high - low)
        return self._first[low] + max(slope, 0.0) * (rows - low)


def _bucket(depth_tokens: int) -> int:
    return round(math.log(depth_tokens + 256) / math.log(1.25))


def _near(seconds: float, expected: float) -> float:
    """Return a time as far as it is believed where another was expected."""
    return min(max(seconds, expected / FARTHEST), expected * FARTHEST)
