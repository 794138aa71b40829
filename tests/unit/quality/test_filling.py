"""Prompts are filled up to their length in few tries, and lines are cut and hidden in order."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ellm.errors import ConfigError
from ellm.quality.tasks.filling import LEAST_FILL, Prompt, fill
from ellm.quality.tasks.haystack import MAX_LINE_CHARACTERS, Haystack, insert
from ellm.quality.tasks.task import Item

ITEM = Item(document="", question="", answer_prefix="", expected=("x",))


def filled(
    tokens_of: Callable[[int], int], limit: int, *, unit_tokens: int = 14
) -> tuple[int, list[int]]:
    """Return the tokens of what was found, and the sizes that were tried."""
    tried = []

    def make(size: int) -> Prompt:
        tried.append(size)
        return Prompt(ITEM, range(tokens_of(size)))

    found = fill(make, limit, unit_tokens=unit_tokens, name="a task")
    return len(found.tokens), tried


@given(
    base=st.integers(0, 900),
    unit=st.integers(1, 40),
    limit=st.integers(1024, 200_000),
    guess=st.integers(1, 100),
)
def test_even_units_are_found_at_once(base: int, unit: int, limit: int, guess: int) -> None:
    tokens, tried = filled(lambda size: base + size * unit, limit, unit_tokens=guess)
    assert LEAST_FILL * limit <= tokens <= limit
    assert len(tried) <= 5


@given(seed=st.integers(0, 10_000), limit=st.integers(1024, 20_000))
def test_uneven_units_are_found_too(seed: int, limit: int) -> None:
    random = Random(seed)
    units = [random.choice([1, 2, 40]) for _ in range(limit)]
    tokens, _ = filled(lambda size: 60 + sum(units[:size]), limit)
    assert LEAST_FILL * limit <= tokens <= limit


def test_units_too_coarse_give_the_longest_that_fits() -> None:
    tokens, _ = filled(lambda size: 100 + 700 * size, 1024)
    assert tokens == 800


def test_what_does_not_fit_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a task needs 1,025 tokens .* length of 1,024"):
        filled(lambda size: 1025 + size, 1024)


def test_what_cannot_grow_is_taken_as_it_is() -> None:
    tokens, tried = filled(lambda _size: 300, 1024)
    assert (tokens, len(tried)) == (300, 17)


def test_a_text_becomes_lines_without_blank_ones() -> None:
    assert Haystack.from_text("a", "one\n\n  \n two \n").lines == ("one", " two")
    assert Haystack.from_text("a", " \n").lines == (".",)


def test_long_lines_are_cut_between_words_and_nothing_is_lost() -> None:
    text = " ".join(f"word{number}" for number in range(100)) + " " + "x" * 450
    lines = Haystack.from_text("a", text).lines
    assert max(map(len, lines)) <= MAX_LINE_CHARACTERS
    assert "".join(lines) == text
    assert all(line.startswith((" ", "word0", "x")) for line in lines)


def test_lines_are_taken_in_order_and_go_round() -> None:
    haystack = Haystack("a", tuple("abcde"))
    taken = haystack.take(Random(3), 12)
    start = "abcde".index(taken[0])
    assert "".join(taken) == ("abcde" * 4)[start : start + 12]
    assert haystack.take(Random(3), 0) == []


def test_needles_are_put_at_their_places_in_their_order() -> None:
    lines = list("abcd")
    assert insert(lines, [(1.0, "Z"), (0.0, "A"), (0.5, "M")]) == [
        "A",
        "a",
        "b",
        "M",
        "c",
        "d",
        "Z",
    ]
    assert insert([], [(0.7, "2"), (0.2, "1")]) == ["1", "2"]
    assert lines == list("abcd")
