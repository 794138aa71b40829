"""Copies: what is proposed, and what is learnt from what came instead."""

from hypothesis import given
from hypothesis import strategies as st

from ellm.speculative.suffix import SuffixChances, SuffixDrafter
from tests.support.suffix import NaiveSuffixIndex


def drafter_of(text, chances=None):
    drafter = SuffixDrafter(NaiveSuffixIndex(), chances or SuffixChances())
    drafter.commit(text)
    return drafter


def copy(drafter, most=4):
    found = drafter.propose(most, None)
    return None if found is None else found.tokens


def test_what_followed_the_longest_match_is_proposed():
    #        the longer match ........  the shorter, later one
    text = [1, 2, 3, 4, 50, 51, 52, 53, 3, 4, 60, 61, 62, 1, 2, 3, 4]
    assert copy(drafter_of(text)) == [50, 51, 52, 53]


def test_of_equal_matches_the_latest_counts():
    assert copy(drafter_of([1, 2, 50, 9, 1, 2, 60, 8, 1, 2])) == [60, 8, 1, 2]


def test_without_a_match_there_is_nothing_to_copy():
    assert copy(drafter_of([1, 2, 3])) is None
    assert copy(drafter_of([1, 2, 3, 1]), 2) == [2, 3]


def test_a_copy_that_runs_into_the_end_repeats():
    assert copy(drafter_of([5, 1, 2, 3, 1, 2, 3]), 8) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert copy(drafter_of([7, 7, 7]), 5) == [7] * 5


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 16))
def test_every_copy_has_a_chance_per_token(text, most):
    found = drafter_of(text).propose(most, None)
    if found is not None:
        assert len(found.tokens) == len(found.chances) == most
        assert all(0 < chance < 1 for chance in found.chances)
        assert set(found.tokens) <= set(text)


def test_long_matches_have_the_better_chances():
    def first_chance(length):
        text = list(range(100, 100 + length))
        return drafter_of([*text, 1, *text]).propose(1, None).chances[0]

    assert first_chance(2) < first_chance(3) < first_chance(4) < first_chance(20)


def test_chances_are_learnt_from_copies_that_were_not_checked_too():
    chances = SuffixChances()
    before = chances.of(3, 0).mean
    for _ in range(10):
        drafter = drafter_of([1, 2, 3, 4, 5, 6, 9, 1, 2, 3], chances)
        drafter.propose(4, None)
        drafter.commit([70])
    assert chances.of(3, 0).mean < before
    assert chances.of(3, 1).mean == SuffixChances().of(3, 1).mean
    for _ in range(10):
        drafter = drafter_of([1, 2, 3, 4, 5, 6, 9, 1, 2, 3], chances)
        drafter.propose(4, None)
        drafter.commit([4, 5, 70])
    assert chances.of(3, 0).mean > 0.5
    assert chances.of(3, 1).mean != SuffixChances().of(3, 1).mean


def test_a_copy_goes_on_behind_a_token_that_is_new():
    drafter = drafter_of([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3])
    assert copy(drafter) == [4, 5, 6, 7]
    drafter.commit([4, 77])  # 77 in the place of 5
    assert copy(drafter, 3) == [6, 7, 8]
    drafter.commit([6, 88])  # 88 in the place of 7
    assert copy(drafter, 2) == [8, 9]


def test_without_a_copy_before_there_is_nothing_to_go_on_with():
    drafter = drafter_of([1, 2, 3])
    assert copy(drafter) is None
    drafter.commit([9])
    assert copy(drafter) is None
