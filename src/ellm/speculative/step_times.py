"""How long a step takes by rows and depth: measured before the first chain, refined since.

What chains need is how rows compare, and machines are busy in fits that change all times alike. So
a time is a product: one row at a depth, what more rows cost of that by a first table, how far
they were found to be from it, and how busy the machine is now. A step that takes longer than this
says moves mostly the last where its number of rows is well known, and mostly the rows' own factor
where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

# Shares of a surprise, in logarithms, that move a factor: the first time most of it, later little.
FIRST_SHARE = 0.6
LEAST_SHARE = 0.05
BUSY_SHARE = 0.25
# Times after which rows at a depth count as known.
KNOWN_TIMES = 4
# Part of one row's attention that a further row is expected to take: half on AVX-512, where memory
# limits one row, nearly all on AVX2.
ROW_ATTENTION = 0.5
# Steps after which rows are worth a trial, whatever they are expected to take.
TRIAL_STEPS = 64
# A surprise beyond this is taken for an accident.
FARTHEST = math.log(3)
# How far rows were found to be from the first table is forgotten by half in so many steps without
# them, longer the better they are known: what seemed slow is tried again.
HALF_LIFE_STEPS = 48
LONGEST_HALF_LIFE_STEPS = 768


@dataclass(slots=True)
class _Rows:
    """Logarithm of how much longer some rows take than the first table says of them."""

    surplus: float = 0.0
    times: int = 0
    step: int = 0

    def at(self, step: int) -> float:
        """Return what is left of the surplus after steps without these rows."""
        half_life = min(HALF_LIFE_STEPS * max(1, self.times), LONGEST_HALF_LIFE_STEPS)
        return float(self.surplus * 0.5 ** ((step - self.step) / half_life))


@dataclass(slots=True)
class _Depth:
    """What is known at a depth: logarithm of one row's seconds, and the surplus of others."""

    one_row: float
    rows: dict[int, _Rows] = field(default_factory=dict)


class StepTimes:
    """Predicts the seconds of a step.

    Depths are kept in buckets of a quarter of themselves, modes of attention apart; a bucket begins
    with what the nearest one knows.
    """

    def __init__(self) -> None:
        """Know nothing: more rows cost nothing until a time is known."""
        self._first: dict[int, float] = {}
        self._depths: dict[tuple[object, int], _Depth] = {}
        self._busy = 0.0
        self._steps = 0

    def start(self, seconds: Mapping[int, float]) -> None:
        """Take the times of steps by their number of rows, all at one depth.

        One that rows by themselves would not take was measured while the machine was busy.
        """
        one = seconds[1]
        self._first = {rows: min(seconds[rows], rows * one) for rows in sorted(seconds)}

    def needs_trial(self, mode: object, depth_tokens: int, rows: int) -> bool:
        """Return whether `rows` were not run at this depth for so long that it is worth a step."""
        known = self._nearest(mode, _bucket(depth_tokens))
        own = None if known is None else known.rows.get(rows)
        return own is None or self._steps - own.step >= TRIAL_STEPS

    def observe(self, mode: object, depth_tokens: int, rows: int, seconds: float) -> None:
        """Take the time that a step took at this mean depth of its rows."""
        self._steps += 1
        expected = self.predict(mode, depth_tokens, rows)
        surprise = math.log(max(seconds, 1e-9) / expected)
        surprise = min(max(surprise, -FARTHEST), FARTHEST)
        known = self._known(mode, depth_tokens)
        own = known.rows.setdefault(rows, _Rows())
        own.surplus, own.step = own.at(self._steps), self._steps
        own.times += 1
        share = max(LEAST_SHARE, FIRST_SHARE / own.times)
        if rows == 1:
            known.one_row += share * surprise
        else:
            own.surplus += share * surprise
        if own.times >= KNOWN_TIMES:
            self._busy += BUSY_SHARE * surprise

    def predict(self, mode: object, depth_tokens: int, rows: int) -> float:
        """Return the seconds of a step; only their proportions mean anything at first."""
        known = self._nearest(mode, _bucket(depth_tokens))
        if known is None:
            return self._first_time(rows) * math.exp(self._busy)
        own = known.rows.get(rows)
        surplus = 0.0 if own is None or rows == 1 else own.at(self._steps)
        return math.exp(known.one_row + self._busy + surplus) * self._ratio(rows, known.one_row)

    def _known(self, mode: object, depth_tokens: int) -> _Depth:
        key = (mode, _bucket(depth_tokens))
        if key not in self._depths:
            near = self._nearest(*key)
            if near is None:
                self._depths[key] = _Depth(math.log(self._first_time(1)))
            else:
                self._depths[key] = _Depth(
                    near.one_row,
                    {
                        count: _Rows(own.at(self._steps), 1, self._steps)
                        for count, own in near.rows.items()
                    },
                )
        return self._depths[key]

    def _nearest(self, mode: object, bucket: int) -> _Depth | None:
        near = min(
            (key for key in self._depths if key[0] == mode),
            key=lambda key: abs(key[1] - bucket),
            default=None,
        )
        return None if near is None else self._depths[near]

    def _ratio(self, rows: int, one_row: float) -> float:
        """Return how much longer `rows` are expected to take than one, which takes this long.

        What one row takes beyond the first table is attention, which every row pays for in part.
        """
        first = self._first_time(1)
        attention = max(0.0, math.exp(one_row) - first)
        more = attention * (1 + ROW_ATTENTION * (rows - 1))
        return (self._first_time(rows) + more) / (first + attention)

    def _first_time(self, rows: int) -> float:
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
