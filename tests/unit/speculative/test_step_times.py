"""Step times: measured, scaled to where nothing was measured, refined, forgotten."""

import pytest

from ellm.speculative.step_times import FIRST_STEPS, MOST_STEPS, NEW_SHARE, StepTimes

SHALLOW = {1: 0.030, 2: 0.033, 4: 0.036, 6: 0.060}


@pytest.fixture
def times():
    times = StepTimes()
    times.start(SHALLOW)
    return times


def test_without_any_time_rows_are_free():
    assert StepTimes().predict(None, 0, 1) == StepTimes().predict(None, 9999, 8)


def test_first_times_hold_at_every_depth_and_are_joined_by_lines(times):
    assert times.predict(None, 5000, 1) == SHALLOW[1]
    assert times.predict(None, 0, 3) == pytest.approx(0.0345)
    assert times.predict("scan", 0, 8) == pytest.approx(0.060 + 2 * 0.012)


def test_a_depth_is_scaled_from_the_rows_that_were_run_there(times):
    times.observe(None, 16000, 1, 0.060)
    assert times.predict(None, 16000, 1) == pytest.approx(0.060)
    assert times.predict(None, 16000, 4) == pytest.approx(0.060 * 36 / 30)
    times.observe(None, 16000, 4, 0.100)
    assert times.predict(None, 16000, 4) == pytest.approx(0.100)
    assert times.predict(None, 16000, 1) == pytest.approx(0.060)


def test_the_nearest_depth_of_the_same_mode_counts(times):
    times.observe(None, 16000, 1, 0.060)
    times.observe(None, 1000, 1, 0.031)
    times.observe("scan", 16000, 1, 0.040)
    assert times.predict(None, 14000, 1) == pytest.approx(0.060)
    assert times.predict(None, 300, 1) == pytest.approx(0.031)
    assert times.predict("scan", 30000, 1) == pytest.approx(0.040)


def test_new_times_move_the_old_ones_and_outliers_only_so_far(times):
    times.observe(None, 0, 1, 0.030)
    times.observe(None, 0, 1, 0.040)
    assert times.predict(None, 0, 1) == pytest.approx(0.030 + NEW_SHARE * 0.010)
    times.observe(None, 0, 1, 100.0)
    assert times.predict(None, 0, 1) == pytest.approx(0.032 * (1 + NEW_SHARE))


def steps_believed(times, rows):
    count = 0
    while times.predict(None, 0, rows) > 0.050:
        times.observe(None, 0, 1, 0.030)
        count += 1
    return count


def test_rows_that_were_slow_once_are_tried_again_soon_and_if_they_are_slow_later():
    times = StepTimes()
    times.start(SHALLOW)
    times.observe(None, 0, 1, 0.030)
    times.observe(None, 0, 4, 0.060)
    assert steps_believed(times, 4) == FIRST_STEPS + 1
    for _ in range(10):
        times.observe(None, 0, 4, 0.060)
    assert steps_believed(times, 4) == MOST_STEPS + 1
    times.observe(None, 0, 4, 0.040)
    assert times.predict(None, 0, 4) == pytest.approx(0.040)


def test_a_first_time_far_from_what_was_expected_is_believed_in_part(times):
    times.observe(None, 0, 1, 0.030)
    times.observe(None, 0, 4, 3.0)
    assert times.predict(None, 0, 4) == pytest.approx(0.072)
