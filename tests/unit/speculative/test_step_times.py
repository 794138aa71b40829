"""Step times: measured, scaled to where nothing was measured, refined, robust to a busy machine."""

import math
import random

import pytest

from ellm.speculative.step_times import (
    HALF_LIFE_STEPS,
    LONGEST_HALF_LIFE_STEPS,
    TRIAL_STEPS,
    StepTimes,
)

SHALLOW = {1: 0.030, 2: 0.033, 4: 0.036, 6: 0.060}


@pytest.fixture
def times():
    times = StepTimes()
    times.start(SHALLOW)
    return times


def ratio(times, rows, *, mode=None, depth=0):
    return times.predict(mode, depth, rows) / times.predict(mode, depth, 1)


def run(times, real, steps, *, mode=None, depth=0, busy=lambda: 1.0):
    """Feed steps of these rows in turn, taking `real` seconds by rows."""
    for rows in steps:
        times.observe(mode, depth, rows, real[rows] * busy())


def test_without_any_time_rows_are_free():
    assert ratio(StepTimes(), 8, depth=9999) == 1


def test_first_times_hold_at_every_depth_and_are_joined_by_lines(times):
    assert times.predict(None, 5000, 1) == pytest.approx(SHALLOW[1])
    assert times.predict(None, 0, 3) == pytest.approx(0.0345)
    assert times.predict("scan", 0, 8) == pytest.approx(0.060 + 2 * 0.012)


def test_deep_rows_are_expected_to_pay_for_attention_each(times):
    run(times, {1: 0.060}, [1] * 30, depth=16000)
    assert ratio(times, 4, depth=16000) == pytest.approx((0.036 + 0.030 * 2.5) / 0.060, rel=0.05)


def test_what_is_measured_replaces_what_was_expected(times):
    real = {1: 0.040, 2: 0.050, 4: 0.100}
    run(times, real, [1, 2, 4] * 40, depth=16000)
    for rows, seconds in real.items():
        assert times.predict(None, 16000, rows) == pytest.approx(seconds, rel=0.03)


def test_modes_are_apart_and_a_new_depth_begins_with_the_nearest(times):
    run(times, {1: 0.060, 4: 0.120}, [1, 4] * 40, depth=16000)
    run(times, {1: 0.030, 4: 0.036}, [1, 4] * 40, mode="scan", depth=16000)
    assert ratio(times, 4, depth=20000) == pytest.approx(2.0, rel=0.05)
    assert ratio(times, 4, mode="scan", depth=20000) == pytest.approx(1.2, rel=0.05)


def test_a_busy_machine_does_not_change_how_rows_compare():
    """Fits of double time, jitter and accidents; each fit meets mostly one number of rows."""
    rng = random.Random(3)
    real = {1: 0.030, 2: 0.033, 4: 0.036, 6: 0.060}
    times = StepTimes()
    times.start(SHALLOW)
    run(times, real, [1, 4] * 50)
    worst = 0.0
    for fit in range(40):
        factor = 2.2 if fit % 2 else 1.0

        def busy(factor=factor):
            accident = 3.0 if rng.random() < 0.02 else 1.0
            return factor * accident * math.exp(rng.gauss(0, 0.05))

        often = 4 if fit % 3 else 1
        run(times, real, [1, 4] + [often] * rng.randint(5, 30) + [1], busy=busy)
        worst = max(worst, abs(math.log(ratio(times, 4) / 1.2)))
    assert worst < 0.35


def test_rows_that_seemed_slow_are_tried_again_later_the_better_they_are_known():
    def steps_until_half(known):
        times = StepTimes()
        times.start(SHALLOW)
        run(times, {1: 0.030, 4: 0.072}, [1, 4] * known)
        high, count = ratio(times, 4), 0
        while ratio(times, 4) > 1.2 + (high - 1.2) / 2:
            times.observe(None, 0, 1, 0.030)
            count += 1
        return count

    soon, late = steps_until_half(1), steps_until_half(40)
    assert soon <= 1.5 * HALF_LIFE_STEPS
    assert 2 * soon < late <= 1.5 * LONGEST_HALF_LIFE_STEPS


def test_rows_never_take_longer_than_each_by_itself():
    times = StepTimes()
    times.start({1: 0.030, 2: 0.500, 4: 0.036})
    assert ratio(times, 2) == 2.0


def test_a_trial_is_due_when_rows_were_not_run_for_long(times):
    assert times.needs_trial(None, 0, 2)
    run(times, SHALLOW, [2])
    assert not times.needs_trial(None, 0, 2)
    run(times, SHALLOW, [1] * TRIAL_STEPS)
    assert times.needs_trial(None, 0, 2)
    assert times.needs_trial(None, 0, 4)


def test_an_accident_is_not_believed(times):
    run(times, SHALLOW, [1, 4] * 30)
    times.observe(None, 0, 4, 30.0)
    assert ratio(times, 4) == pytest.approx(1.2, rel=0.1)
