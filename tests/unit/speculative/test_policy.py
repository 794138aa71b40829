"""How many guesses pay, by their chances and by what steps cost."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ellm.speculative.policy import (
    LEAST_GAIN,
    best_rate,
    costly_rate,
    expected_tokens,
    pays_back,
    pays_to_go_on,
    share_rows,
)
from ellm.speculative.source import Outlook

CHANCES = st.lists(st.floats(0.01, 0.99), max_size=4)


def linear(slope):
    return lambda rows: 1 + slope * (rows - 1)


def tokens_of(chances, lengths):
    return sum(expected_tokens(row[:length]) for row, length in zip(chances, lengths, strict=True))


def test_tokens_are_those_of_every_guess_being_right_after_those_before():
    assert expected_tokens([]) == 1
    assert expected_tokens([0.5, 0.5]) == 1 + 0.5 + 0.25


@given(st.lists(CHANCES, min_size=1, max_size=3), st.floats(0, 1.5), st.integers(0, 12))
def test_shared_rows_are_the_best_there_are(chances, slope, most):
    seconds = linear(slope)
    found = share_rows(chances, seconds, most=most)
    options = [
        lengths
        for lengths in itertools.product(*(range(len(row) + 1) for row in chances))
        if sum(lengths) <= most
    ]
    rate = {
        lengths: tokens_of(chances, lengths) / seconds(len(chances) + sum(lengths))
        for lengths in options
    }
    plain = rate[(0,) * len(chances)]
    best = max(rate.values())
    if any(found):
        assert math.isclose(rate[tuple(found)], best, rel_tol=1e-9)
        assert best > plain * LEAST_GAIN
    else:
        assert best <= plain * LEAST_GAIN * (1 + 1e-9)


def test_nothing_is_proposed_for_a_gain_under_five_percent():
    assert share_rows([[0.5]], linear(0.44), most=4) == [0]
    assert share_rows([[0.5]], linear(0.42), most=4) == [1]


def test_a_jump_in_cost_is_stepped_over_or_stopped_at():
    def tiled(rows):
        return 1.0 if rows <= 4 else 1.4

    assert share_rows([[0.9] * 8], tiled, most=8) == [8]
    assert share_rows([[0.7] * 8], tiled, most=8) == [3]


def test_the_better_sequence_gets_the_rows():
    assert share_rows([[0.9, 0.9], [0.3]], linear(0.3), most=8) == [2, 0]
    assert share_rows([[0.9, 0.9], []], linear(0.1), most=1) == [1, 0]


@given(CHANCES, st.floats(0, 1.5), st.integers(1, 3))
def test_best_rate_is_that_of_the_best_length(chances, slope, rows):
    seconds = linear(slope)
    expected = max(
        (rows - 1 + expected_tokens(chances[:n])) / seconds(rows + n)
        for n in range(len(chances) + 1)
    )
    assert best_rate(chances, seconds, rows=rows) == pytest.approx(expected)


def test_a_costly_source_has_to_earn_what_its_guesses_take():
    outlook = Outlook(chance=0.9, most=4, seconds_per_token=0.3, first_seconds=0.1)
    rate = costly_rate(outlook, linear(0.05), rows=1, most=8)
    assert rate == pytest.approx(
        max(expected_tokens([0.9] * n) / (1 + 0.05 * n + 0.1 + 0.3 * n) for n in range(1, 5))
    )
    assert costly_rate(outlook, linear(0.05), rows=1, most=0) == 0
    assert pays_back(outlook, rate=1.05, expected=rate, tokens=10)
    assert not pays_back(outlook, rate=rate, expected=rate, tokens=10)


def test_reading_a_text_has_to_be_paid_back_by_the_answer():
    outlook = Outlook(0.9, 4, 0.1, 0.0, setup_seconds=10.0)
    assert not pays_back(outlook, rate=1.0, expected=2.0, tokens=19)
    assert pays_back(outlook, rate=1.0, expected=2.0, tokens=20)


def test_guessing_ends_where_one_more_does_not_pay():
    cheap = Outlook(chance=0.9, most=4, seconds_per_token=0.1, first_seconds=0.0)
    dear = Outlook(chance=0.9, most=4, seconds_per_token=2.0, first_seconds=0.0)
    assert pays_to_go_on([0.9], cheap, linear(0.05), 1)
    assert not pays_to_go_on([0.9], dear, linear(0.05), 1)
    assert not pays_to_go_on([0.9, 0.1], cheap, linear(0.05), 1)
