from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ellm.sampling.stop import StopChecker

texts = st.text(alphabet="ab\u00e9", max_size=40)
stops = st.lists(st.text(alphabet="ab\u00e9", min_size=1, max_size=6), max_size=4)


def expected(text, stop):
    """Return what is shown of `text`, by the definition: the first string that is complete."""
    for end in range(1, len(text) + 1):
        found = [string for string in stop if text[:end].endswith(string)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def pieces_of(text, cuts):
    borders = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(borders)]


@settings(deadline=None)
@given(text=texts, stop=stops, cuts=st.lists(st.integers(0, 99), max_size=20))
def test_text_up_to_the_first_stop_string_however_it_is_cut(text, stop, cuts):
    checker = StopChecker(stop)
    shown = ""
    for piece in pieces_of(text, cuts):
        shown += checker.push(piece)
        # Never past the end, and never a start of a stop string that is still open.
        assert expected(text, stop)[0].startswith(shown)
    if checker.found is None:
        shown += checker.flush()
    assert (shown, checker.found) == expected(text, stop)


@settings(deadline=None)
@given(text=texts, stop=stops)
def test_withheld_text_is_the_longest_open_start_of_a_stop_string(text, stop):
    checker = StopChecker(stop)
    shown = checker.push(text)
    if checker.found is None:
        withheld = text[len(shown) :]
        starts = [s[:n] for s in stop for n in range(1, len(s)) if text.endswith(s[:n])]
        assert withheld == max(starts, key=len, default="")


def test_nothing_is_shown_after_a_stop_string():
    checker = StopChecker(["END"])
    assert checker.push("text E") == "text "
    assert checker.push("N") == ""
    assert checker.push("D more") == ""
    assert (checker.push("more"), checker.flush(), checker.found) == ("", "", "END")


def test_false_start_is_shown_when_it_is_known_to_be_one():
    checker = StopChecker(["\n\nQ:"])
    assert checker.push("a\n") == "a"
    assert checker.push("\n") == ""
    assert checker.push("b") == "\n\nb"


@pytest.mark.timeout(20)
def test_long_stop_strings_of_one_character_take_linear_time():
    checker = StopChecker(["a" * 1023 + "b", *["a" * n + "c" for n in range(1000, 1015)]])
    shown = sum(len(checker.push("a" * 4)) for _ in range(20_000))
    assert shown == 80_000 - 1023


def test_longest_of_the_strings_that_are_complete_together_counts():
    for stop in (["c", "bc"], ["bc", "c"]):
        checker = StopChecker(stop)
        assert checker.push("abcd") == "a"
        assert checker.found == "bc"


def test_string_that_is_complete_first_counts_even_if_another_began_earlier():
    checker = StopChecker(["abcd", "bc"])
    assert checker.push("xabcd") == "xa"
    assert checker.found == "bc"
