"""How far one model's predictions are from another's, position by position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ellm.errors import NativeError

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Predictions of a candidate beside those of the reference at n positions.

    Attributes:
        kl: float64 (n,); KL(reference || candidate) in nats.
        same_top: bool (n,); whether both have the same likeliest token.
        margin: float64 (n,); by how much the reference's likeliest token is more probable than its
            second.
        nll_change: float64 (n,); what the candidate adds to the negative log-probability of the
            text's next token.
    """

    kl: Floats
    same_top: Flags
    margin: Floats
    nll_change: Floats


def compare(
    reference: Sequence[NDArray[np.float32]],
    candidate: Iterable[NDArray[np.float32]],
    following: Sequence[int],
) -> Comparison:
    """Compare logits (V,) of n positions in float64.

    Args:
        reference: Logits of the reference.
        candidate: Logits of the candidate; taken one by one, so that they need not be held.
        following: The text's next token at each position.

    Raises:
        NativeError: Logits are not numbers, or there are not n of each.
    """
    count = len(following)
    found = Comparison(np.empty(count), np.empty(count, np.bool_), np.empty(count), np.empty(count))
    done = 0
    for index, logits in enumerate(candidate):
        if index >= count:
            break
        expected = reference[index]
        p, q = log_softmax(expected), log_softmax(logits)
        found.kl[index] = divergence(p, q)
        found.same_top[index] = expected.argmax() == logits.argmax()
        found.margin[index] = margin(p)
        found.nll_change[index] = p[following[index]] - q[following[index]]
        done += 1
    if not done == count == len(reference):
        raise NativeError(
            f"a tail of {count} tokens gave {len(reference)} and {done} rows of logits"
        )
    return found


def log_softmax(logits: NDArray[np.float32]) -> Floats:
    """Return the log-probabilities (V,) of logits (V,).

    Raises:
        NativeError: The largest logit is no finite number.
    """
    largest = logits.max()
    if not np.isfinite(largest):
        raise NativeError(
            f"the largest logit is {largest}, expected a finite number; "
            "the model's weights are damaged"
        )
    shifted: Floats = logits.astype(np.float64) - float(largest)
    shifted -= float(np.log(np.exp(shifted).sum()))
    return shifted


def divergence(p: Floats, q: Floats) -> float:
    """Return KL(p || q) in nats of two rows of log-probabilities (V,).

    Source: S. Kullback and R. A. Leibler, "On information and sufficiency" (1951).
    """
    # A token that p excludes adds nothing; its -inf times 0 would be NaN.
    possible = p > -np.inf
    terms = np.exp(p[possible]) * (p[possible] - q[possible])
    # Never negative; for equal rows rounding may say so.
    return max(0.0, float(terms.sum()))


def margin(p: Floats) -> float:
    """Return by how much the likeliest token is more probable than the second (V >= 2)."""
    second, first = np.partition(p, len(p) - 2)[-2:]
    return float(np.exp(first) - np.exp(second))
