"""KL and what goes with it, on distributions whose values are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from ellm.errors import NativeError
from ellm.quality.divergence import compare, divergence, log_softmax, margin


def logits(*probabilities: float) -> NDArray[np.float32]:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities)).astype(np.float32)


def kl(p: NDArray[np.float32], q: NDArray[np.float32]) -> float:
    return divergence(log_softmax(p), log_softmax(q))


def test_equal_distributions_do_not_diverge() -> None:
    row = np.random.default_rng(0).normal(0, 5, 5000).astype(np.float32)
    assert kl(row, row) == 0.0
    # The same distribution, whose logits are all larger by a constant.
    assert kl(row, row + np.float32(4.0)) == pytest.approx(0.0, abs=1e-6)


def test_known_divergences() -> None:
    p, q = logits(0.5, 0.5), logits(0.25, 0.75)
    assert kl(p, q) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-6)
    assert kl(q, p) == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5), rel=1e-6)


def test_normal_noise_diverges_by_half_its_variance_where_all_is_even() -> None:
    """For uniform p and small noise e, KL is var(e) / 2."""
    noise = np.random.default_rng(1).normal(0, 0.01, 100_000).astype(np.float32)
    assert kl(np.zeros(100_000, np.float32), noise) == pytest.approx(noise.var() / 2, rel=0.01)


def test_huge_logits_do_not_overflow() -> None:
    p = np.array([3e38, 0.0, -3e38], np.float32)
    assert log_softmax(p)[0] == 0.0
    assert kl(p, p) == 0.0


def test_excluded_tokens_count_only_where_the_reference_has_them() -> None:
    both = logits(0.5, 0.5, 0.0)
    assert kl(both, logits(0.25, 0.5, 0.25)) == pytest.approx(0.5 * math.log(2), rel=1e-6)
    assert kl(both, both) == 0.0
    assert kl(both, logits(1.0, 0.0, 0.0)) == math.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_an_error(bad: float) -> None:
    with pytest.raises(NativeError, match="expected a finite number"):
        log_softmax(np.array([0.0, bad], np.float32))


def test_the_margin_is_between_the_first_two_wherever_they_are() -> None:
    assert margin(log_softmax(logits(0.2, 0.7, 0.1))) == pytest.approx(0.5, rel=1e-6)
    assert margin(log_softmax(logits(0.5, 0.5))) == pytest.approx(0.0, abs=1e-9)


def test_positions_are_compared_one_by_one() -> None:
    reference = [logits(0.7, 0.2, 0.1), logits(0.1, 0.8, 0.1)]
    candidate = [logits(0.7, 0.2, 0.1), logits(0.6, 0.3, 0.1)]
    found = compare(reference, iter(candidate), [2, 1])
    assert found.kl[0] == 0.0
    assert found.kl[1] > 0.1
    assert found.same_top.tolist() == [True, False]
    assert found.margin.tolist() == pytest.approx([0.5, 0.7], rel=1e-5)
    assert found.nll_change.tolist() == pytest.approx([0.0, math.log(0.8 / 0.3)], abs=1e-6)


@pytest.mark.parametrize(("references", "candidates"), [(2, 1), (1, 2), (3, 2)])
def test_a_tail_that_ends_too_soon_is_an_error(references: int, candidates: int) -> None:
    row = logits(0.5, 0.5)
    with pytest.raises((NativeError, IndexError)):
        compare([row] * references, [row] * candidates, [0, 0])
