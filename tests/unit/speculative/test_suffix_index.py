"""The suffix index against its definition, and what it costs."""

import mmap
import sys
import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ellm import native
from ellm.errors import CapacityError

SMALLEST, LARGEST = -(2**31), 2**31 - 1
# Up to this many tokens no end is older than the latest: so many suffixes are kept up to date.
EXACT_TOKENS = 32
alphabets = st.sampled_from([[7], [0, 1], [-1, 0, 1], [SMALLEST, -1, 0, LARGEST], range(12)])


def texts(max_size):
    return alphabets.flatmap(lambda a: st.lists(st.sampled_from(a), max_size=max_size))


@st.composite
def repetitive_texts(draw):
    """Pieces of what came before, again and again: the texts in which suffixes nest."""
    text = draw(texts(8))
    for start, length in draw(
        st.lists(st.tuples(st.integers(0, 99), st.integers(0, 60)), max_size=8)
    ):
        text = text + text[start : start + length]
    return text


def index_of(*parts):
    index = native.SuffixIndex()
    for part in parts:
        index.extend(np.array(part, dtype=np.int32))
    return index


def naive(text):
    """Return the match by the definition."""
    for length in range(len(text) - 1, 0, -1):
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == text[-length:]:
                return length, end
    return 0, len(text)


@settings(deadline=None)
@given(texts(EXACT_TOKENS))
def test_after_every_token_it_is_the_latest_place_of_the_longest_match(text):
    index = native.SuffixIndex()
    for end in range(len(text) + 1):
        assert index.match() == naive(text[:end])
        index.extend(np.array(text[end : end + 1], dtype=np.int32))


@settings(deadline=None)
@given(repetitive_texts() | texts(120))
@example([0] * 100 + [1] + [0] * 60)
def test_in_any_text_it_is_a_place_of_the_longest_match(text):
    length, end = index_of(text).match()
    assert length == naive(text)[0]
    if length == 0:
        assert end == len(text)
    else:
        assert length <= end < len(text)
        assert text[end - length : end] == text[-length:]


@settings(deadline=None)
@given(text=repetitive_texts(), cuts=st.lists(st.integers(0, 400), max_size=10))
def test_how_a_text_is_cut_changes_nothing(text, cuts):
    borders = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    whole = index_of(text)
    for other in (index_of(*(text[a:b] for a, b in pairwise(borders))), index_of(*zip(text))):
        assert (other.match(), len(other), other.bytes) == (whole.match(), len(text), whole.bytes)


def test_the_empty_text_has_no_match():
    index = index_of([], [])
    assert (index.match(), len(index)) == ((0, 0), 0)


def test_nothing_more_changes_nothing():
    index = index_of([5, 6, 5])
    index.extend(np.array([], dtype=np.int32))
    assert (index.match(), len(index)) == ((1, 1), 3)


def test_a_match_may_overlap_the_end():
    assert index_of([3, 3, 3, 3]).match() == (3, 3)


def test_tokens_that_follow_in_many_ways_are_all_kept_when_what_comes_before_changes():
    many, before, hub = 5000, -1, -2
    index = index_of([token for i in range(many) for token in (before, hub, i)])
    for i in range(many):
        index.extend(np.array([many + i, hub, i], dtype=np.int32))
        assert index.match() == (2, 3 * i + 3)


@pytest.mark.parametrize("tail", [[], [1], [1, 0, 0]])
def test_a_run_of_equal_tokens_takes_linear_time(tail):
    """With the square of it this would take hours."""
    run = 200_000
    index = index_of(np.zeros(run), tail)
    expected = {0: run - 1, 1: 0, 3: 2}
    assert index.match()[0] == expected[len(tail)]


def test_two_long_equal_halves_match():
    half = np.random.default_rng(0).integers(0, 3, 50_000)
    index = index_of(half, [3], half)
    assert index.match() == (50_000, 50_000)


@pytest.mark.parametrize("vocabulary", [1, 2, 100, 150_000])
def test_128k_tokens_fit_into_40_mb(vocabulary):
    index = index_of(np.random.default_rng(1).integers(0, vocabulary, 131_072))
    assert 131_072 * 24 <= index.bytes < 40e6


@pytest.mark.parametrize(
    "tokens",
    [
        np.zeros(3, dtype=np.int64),
        np.zeros(3, dtype=np.float32),
        np.zeros((3, 1), dtype=np.int32),
        np.zeros(6, dtype=np.int32)[::2],
    ],
)
def test_only_a_row_of_int32_is_taken(tokens):
    index = native.SuffixIndex()
    with pytest.raises(TypeError):
        index.extend(tokens)
    assert len(index) == 0


def test_read_only_tokens_are_taken():
    tokens = np.array([1, 2, 1], dtype=np.int32)
    tokens.flags.writeable = False
    index = native.SuffixIndex()
    index.extend(tokens)
    assert index.match() == (1, 1)


def test_more_tokens_than_positions_are_refused():
    index = index_of([1, 2, 1])
    # 8 GB of addresses; as nobody may write to them, no memory is set aside.
    pages = mmap.mmap(-1, 4 * (2**31 - 4), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    with pytest.raises(CapacityError) as failure:
        index.extend(np.frombuffer(pages, dtype=np.int32))
    assert (failure.value.needed, failure.value.available) == (2**31 - 4, 2**31 - 5)
    assert (index.match(), len(index)) == ((1, 1), 3)


def test_other_threads_go_on_while_a_long_text_is_read():
    tokens = np.zeros(100_000, dtype=np.int32)
    waiting, ran = threading.Event(), threading.Event()
    go = threading.Lock()

    def other():
        waiting.set()
        with go:
            ran.set()

    def ran_meanwhile():
        native.SuffixIndex().extend(tokens)
        return ran.is_set()

    thread = threading.Thread(target=other)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # so that only who gives the GIL away loses it
    try:
        with go:
            thread.start()
            waiting.wait()
        # More than once: the system need not let the other thread run at once.
        assert any(ran_meanwhile() for _ in range(50))
    finally:
        sys.setswitchinterval(interval)
        thread.join()
