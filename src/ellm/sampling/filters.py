"""Which tokens stay in the draw: top-k, top-p and min-p, each on what the one before it left.

All return ids in ascending order. On ties at the border the lower ids stay, so that a choice never
depends on how a partition happens to order equal values.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

# A confident model reaches top_p within these; only a flat distribution needs all V sorted.
FIRST_TOP_P_VALUES = 4096


def top_k(logits: Logits, k: int) -> Ids:
    """Return ids of the k largest of `logits` (n,)."""
    if k >= len(logits):
        return np.arange(len(logits))
    return _at_least(logits, _largest_values(logits, k).min(), k)


def top_p(logits: Logits, p: float) -> Ids:
    """Return ids of the fewest most likely tokens of `logits` (n,) whose probabilities reach p.

    At least one is kept.

    Source: nucleus sampling, arXiv 1904.09751.
    """
    largest = logits.max()
    wanted = p * np.exp(logits - largest, dtype=np.float64).sum()
    count = min(FIRST_TOP_P_VALUES, len(logits))
    while True:
        values = np.sort(_largest_values(logits, count))[::-1]
        reached = np.cumsum(np.exp(values - largest, dtype=np.float64))
        if reached[-1] >= wanted or count == len(logits):
            break
        count = min(8 * count, len(logits))
    kept = min(int(np.searchsorted(reached, wanted)) + 1, len(values))
    return _at_least(logits, values[kept - 1], kept)


def min_p(logits: Logits, share: float) -> Ids:
    """Return ids of `logits` (n,) at least `share` times as likely as the largest.

    Source: arXiv 2407.01082.
    """
    return np.flatnonzero(logits >= logits.max() + np.log(share))


def _largest_values(logits: Logits, count: int) -> Logits:
    """Return the `count` largest values in any order."""
    start = len(logits) - count
    return np.partition(logits, start)[start:] if start else logits


def _at_least(logits: Logits, threshold: np.float32, count: int) -> Ids:
    """Return the ids of `count` values that are at least `threshold`, which is one of them."""
    ids = np.flatnonzero(logits >= threshold)
    surplus = len(ids) - count
    if not surplus:
        return ids
    return np.delete(ids, np.flatnonzero(logits[ids] == threshold)[-surplus:])
