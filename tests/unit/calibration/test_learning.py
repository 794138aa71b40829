"""What texts teach of the heads, and which mass is the smallest that is near enough on all."""

from __future__ import annotations

import numpy as np
import pytest

from ellm.calibration.learning import Learnt, choose_mass, learnt_mass, meets
from ellm.calibration.plan import MASSES
from ellm.program.executor import Estimate

from .findings import figures, findings


def test_scales_are_the_geometric_mean_over_texts() -> None:
    found = Learnt.from_texts([findings(scale=0.5), findings(scale=0.5), findings(scale=2.0)])
    np.testing.assert_allclose(found.scales, 0.5 ** (1 / 3), rtol=1e-6)
    assert found.scales.dtype == np.float32


@pytest.mark.parametrize(("scale", "expected"), [(100.0, 4.0), (1e-9, 0.25), (3.9, 3.9)])
def test_scales_are_clipped(scale: float, expected: float) -> None:
    found = Learnt.from_texts([findings(scale=scale)])
    np.testing.assert_allclose(found.scales, expected, rtol=1e-6)


def test_a_head_streams_if_it_saw_next_to_nothing_beyond_the_window_in_every_text() -> None:
    near, far = findings(beyond=0.004), findings(beyond=0.004)
    far.observations.beyond_window[1, 0] = 0.006
    both = Learnt.from_texts([near, far]).heads(0).allowances
    np.testing.assert_array_equal(both, [[np.inf, np.inf], [1.0, np.inf]])
    assert np.isinf(Learnt.from_texts([near]).heads(0).allowances).all()
    at_the_limit = Learnt.from_texts([findings(beyond=0.005)])
    assert not at_the_limit.streaming.any()


def test_a_head_is_dense_where_reading_less_does_not_pay_on_average() -> None:
    first, second = findings(read=0.5), findings(read=0.5)
    first.observations.read[0, 1, 5:] = 0.9
    second.observations.read[0, 1, 5:] = [0.5, 0.55, 0.4]
    learnt = Learnt.from_texts([first, second])
    for index in range(len(MASSES)):
        expected = np.ones((2, 2))
        # (0.9 + 0.5) / 2 and (0.9 + 0.55) / 2 are at least 0.7, (0.9 + 0.4) / 2 is not.
        expected[0, 1] = 0.0 if index in (5, 6) else 1.0
        np.testing.assert_array_equal(learnt.heads(index).allowances, expected)


def test_a_head_that_streams_is_not_dense() -> None:
    learnt = Learnt.from_texts([findings(read=0.9, beyond=0.0)])
    assert np.isinf(learnt.heads(0).allowances).all()


def test_the_rule_of_a_mass_has_it_and_what_was_learnt_of_heads() -> None:
    learnt = Learnt.from_texts([findings(scale=1.5, read=0.9)])
    rule = learnt.rule(3)
    assert (rule.estimate, rule.mass, rule.max_blocks) == (Estimate.SCAN, MASSES[3], None)
    assert rule.heads is not None
    np.testing.assert_array_equal(rule.heads.allowances, np.zeros((2, 2)))
    np.testing.assert_array_equal(rule.heads.scales, np.full((2, 4), 1.5, np.float32))


@pytest.mark.parametrize(
    ("found", "near"),
    [
        (figures(0.002, 0.3), True),
        (figures(0.0021, 0.0), False),
        (figures(0.0, 0.31), False),
        (figures(float("nan"), 0.0), False),
        (figures(0.0, float("nan")), False),
    ],
)
def test_mean_and_p99_must_be_near(found, near: bool) -> None:
    assert meets(found, 0.002) is near


def by_mass(*mean_kls: float):
    return [figures(kl) for kl in mean_kls]


def test_the_smallest_mass_that_is_near_enough_on_every_text_is_chosen() -> None:
    one = by_mass(0.1, 0.001, 0.001, 0.001)
    other = by_mass(0.1, 0.1, 0.001, 0.002)
    assert choose_mass([one], 0.002) == (1, True)
    assert choose_mass([one, other], 0.002) == (2, True)
    # On one text the next mass is the worse one, on the other this one.
    crossed = by_mass(0.001, 0.1, 0.001, 0.001)
    assert choose_mass([one, crossed], 0.002) == (2, True)
    assert choose_mass([one, other], 1.0) == (0, True)


def test_where_no_mass_is_near_enough_it_is_the_last() -> None:
    assert choose_mass([by_mass(0.1, 0.1, 0.1), by_mass(0, 0, 0.1)], 0.002) == (2, False)
    assert choose_mass([by_mass(0.1)], 0.002) == (0, False)


def test_texts_of_other_masses_are_no_pair() -> None:
    with pytest.raises(ValueError, match="zip"):
        choose_mass([by_mass(0.1), by_mass(0.1, 0.1)], 0.002)


def test_the_mass_that_was_learnt_is_that_of_all_findings() -> None:
    kls = [0.1] * len(MASSES)
    kls[4:] = [0.001] * (len(MASSES) - 4)
    assert learnt_mass([findings(), findings(mean_kls=kls)], 0.002) == (4, True)
    assert learnt_mass([findings(), findings(mean_kls=kls)], 1e-6) == (len(MASSES) - 1, False)
