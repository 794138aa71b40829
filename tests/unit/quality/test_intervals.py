"""Intervals cover what they say, and have the published values."""

from __future__ import annotations

import numpy as np
import pytest

from ellm.quality.intervals import bootstrap_mean, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (0, 20, 0.0, 0.1611),
        (10, 20, 0.2993, 0.7007),
        (20, 20, 0.8389, 1.0),
        (1, 10, 0.0179, 0.4042),
        # R. G. Newcombe, "Two-sided confidence intervals for the single proportion" (1998), table I
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_has_the_published_values(
    successes: int, trials: int, low: float, high: float
) -> None:
    found = wilson(successes, trials)
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


def test_nothing_is_known_of_a_rate_without_trials() -> None:
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)


@pytest.mark.parametrize("rate", [0.03, 0.5, 0.97])
def test_wilson_covers_the_rate_95_times_of_100(rate: float) -> None:
    rng = np.random.default_rng(5)
    counts = rng.binomial(50, rate, 2000)
    covered = [
        wilson(int(count), 50).low <= rate <= wilson(int(count), 50).high for count in counts
    ]
    assert 0.92 <= np.mean(covered) <= 0.99


def test_the_bootstrap_covers_the_mean_95_times_of_100() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(300):
        found = bootstrap_mean([rng.normal(0.3, 1.0, 40)], seed=trial, repetitions=1000)
        covered += found.low <= 0.3 <= found.high
    # 95 % of 300 with four standard deviations of chance; small samples cover a little less.
    assert 0.89 <= covered / 300 <= 1.0


def test_the_bootstrap_is_as_wide_as_the_normal_interval_of_many() -> None:
    values = np.random.default_rng(2).normal(1.0, 2.0, 2500)
    found = bootstrap_mean([values])
    half = 1.96 * values.std() / 50
    assert found.low == pytest.approx(values.mean() - half, abs=0.01)
    assert found.high == pytest.approx(values.mean() + half, abs=0.01)


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(0).normal(size=20)
    assert bootstrap_mean([values], seed=3) == bootstrap_mean([values], seed=3)
    assert bootstrap_mean([values], seed=3) != bootstrap_mean([values], seed=4)


def test_equal_differences_have_no_width_and_lie_where_they_are() -> None:
    found = bootstrap_mean([np.full(5, -0.25), np.full(3, 0.25)])
    assert (found.low, found.high) == pytest.approx((0.0, 0.0))


def test_a_stratum_counts_as_much_as_another_whatever_its_size() -> None:
    found = bootstrap_mean([np.zeros(1000), np.ones(2)])
    assert (found.low, found.high) == pytest.approx((0.5, 0.5))


def test_more_values_than_a_chunk_holds_are_drawn_the_same_way() -> None:
    values = np.random.default_rng(0).normal(size=3_000)
    found = bootstrap_mean([values], repetitions=500)  # 1.5 million draws
    assert found.low < values.mean() < found.high
