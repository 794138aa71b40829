"""How far chance alone may have moved a figure: 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Z_95 = 1.959963984540054  # the normal distribution's 97.5 % quantile
REPETITIONS = 10_000
# Draws of a chunk, int64: what is held at a time stays under 8 MB.
_CHUNK_DRAWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`."""

    low: float
    high: float


def wilson(successes: int, trials: int) -> Interval:
    """Return the interval of a rate; that of 0 trials is all of 0..1.

    The plain normal interval was rejected: at rates of 0 and 1, which are the usual ones here, it
    has no width.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
    JASA 22 (1927).
    """
    if not trials:
        return Interval(0.0, 1.0)
    rate = successes / trials
    shrink = 1 + Z_95**2 / trials
    centre = (rate + Z_95**2 / (2 * trials)) / shrink
    half = Z_95 / shrink * math.sqrt(rate * (1 - rate) / trials + Z_95**2 / (4 * trials**2))
    # At 0 and 1 the bound is exactly there; rounding would put it just beside.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return Interval(low, high)


def bootstrap_mean(
    strata: Sequence[NDArray[np.float64]], *, seed: int = 0, repetitions: int = REPETITIONS
) -> Interval:
    """Return the percentile interval of the mean of the means of strata.

    For paired differences: each item is drawn with both of its scores, so what makes items hard
    for both sides drops out. Draws are within a stratum: a task keeps its weight.

    Source: B. Efron and R. Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13.

    Args:
        strata: Differences (n_i,) of each stratum, none empty.
        seed: Same seed, same interval.
        repetitions: Samples drawn.
    """
    rng = np.random.default_rng(seed)
    means = np.zeros(repetitions)
    for values in strata:
        means += _resampled_means(values, rng, repetitions) / len(strata)
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(low), float(high))


def _resampled_means(
    values: NDArray[np.float64], rng: np.random.Generator, repetitions: int
) -> NDArray[np.float64]:
    count = len(values)
    rows = max(1, _CHUNK_DRAWS // count)
    means = np.empty(repetitions)
    for start in range(0, repetitions, rows):
        end = min(start + rows, repetitions)
        means[start:end] = values[rng.integers(0, count, (end - start, count))].mean(axis=1)
    return means
