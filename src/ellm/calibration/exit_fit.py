"""Fits the map of an exit: from a layer's residual rows to those that the head reads.

Ridge regression in closed form. A few elements of a residual row are thousands of times larger
than the rest, and so are whole rows, of a text's first token for one. So the ridge of an element
is in proportion to its own variance, and each row counts by the inverse of its mean square at the
head, where the norm divides by it. (On the models tried, exits agree no more often for the latter:
within 1 % of tokens.) What is fitted is the change from the row at the exit to the row at the
head, so that little text leads back to the row itself and not to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ellm.program.executor import Floats

# Ridges that are tried, in shares of each element's variance, ascending.
STRENGTHS = (1e-6, 1e-2, 0.1, 0.3, 1.0, 3.0)
# What counts as the variance of an element that never changes: a share of the mean, or a number
# whose ridge is still one.
_LEAST_SHARE = 1e-6
_LEAST_VARIANCE = 1e-30

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ExitMap:
    """A row at the head is about weight @ row at the exit + bias.

    Attributes:
        weight: float32 (E, E).
        bias: float32 (E,).
    """

    weight: Floats
    bias: Floats


class NormalEquations:
    """What fitting needs of the rows that were seen: two (E, E) sums, however many there are."""

    def __init__(self, size: int) -> None:
        """Have seen no rows of E elements."""
        self._products: Doubles = np.zeros((size, size))
        self._changes: Doubles = np.zeros((size, size))
        self._sum: Doubles = np.zeros(size)
        self._sum_of_changes: Doubles = np.zeros(size)
        self._total_weight = 0.0

    def add(self, rows: Floats, targets: Floats) -> None:
        """Add rows (n, E) at the exit, and the rows (n, E) at the head that follow from them."""
        weights = _row_weights(targets)
        x = rows.astype(np.float64)
        change = targets.astype(np.float64) - x
        weighted = x * weights[:, None]
        self._products += weighted.T @ x
        self._changes += weighted.T @ change
        self._sum += weighted.sum(axis=0)
        self._sum_of_changes += weights @ change
        self._total_weight += float(weights.sum())

    def solve(self, strength: float) -> ExitMap:
        """Return the map with the least squared error and ridge; at least one row was added."""
        mean = self._sum / self._total_weight
        mean_change = self._sum_of_changes / self._total_weight
        covariance = self._products / self._total_weight - np.outer(mean, mean)
        with_change = self._changes / self._total_weight - np.outer(mean, mean_change)
        variance = covariance.diagonal()
        # Rows that are all alike leave nothing to divide by, and nothing to fit but the bias.
        least = max(_LEAST_SHARE * float(variance.mean()), _LEAST_VARIANCE)
        covariance[np.diag_indices_from(covariance)] += strength * np.maximum(variance, least)
        change = np.linalg.solve(covariance, with_change).T
        bias = mean_change - change @ mean
        change[np.diag_indices_from(change)] += 1.0
        return ExitMap(change.astype(np.float32), bias.astype(np.float32))


def fit_exit(equations: NormalEquations, rows: Floats, targets: Floats) -> ExitMap:
    """Return the map whose ridge has the least error on rows (n, E) that it was not fitted to."""
    maps = (equations.solve(strength) for strength in STRENGTHS)
    return min(maps, key=lambda found: relative_error(found, rows, targets))


def relative_error(found: ExitMap, rows: Floats, targets: Floats) -> float:
    """Return the mean squared error of a map over the targets' mean square, row by row."""
    errors = rows @ found.weight.T + found.bias - targets
    return float(np.mean(_row_weights(targets) * np.mean(np.square(errors, dtype=np.float64), 1)))


def fitting_bytes(size: int, num_exits: int, kept_rows: int) -> int:
    """Return the bytes that fitting exits to rows of E elements takes, at most.

    Two sums for each exit; six matrices while one is solved; the maps; rows to choose by.
    """
    matrices = (2 * num_exits + 6) * 8 + (num_exits + 2) * 4
    return matrices * size * size + (num_exits + 4) * 4 * kept_rows * size


def exit_layers(num_layers: int) -> Sequence[int]:
    """Return the layers to try exits after: a quarter, half and three quarters of L."""
    return sorted({max(1, num_layers * quarters // 4) for quarters in (1, 2, 3)} - {num_layers})


def _row_weights(targets: Floats) -> Doubles:
    mean_squares = np.mean(np.square(targets, dtype=np.float64), axis=1)
    weights: Doubles = 1.0 / np.maximum(mean_squares, np.finfo(np.float32).tiny)
    return weights
