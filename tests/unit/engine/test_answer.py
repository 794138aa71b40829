"""When answers end and what of them is shown; the decoder gives one letter per token."""

import numpy as np
import pytest

from ellm.config.sampling import SamplingParams
from ellm.engine.answer import Answer
from ellm.errors import NativeError
from ellm.sampling.sampler import Sampler

LETTERS = "abcdefghijklmnopqrstuvwxyz"
END = 25


class LetterDecoder:
    """Holds back every "q" until the next letter, as half a character would be."""

    def __init__(self):
        self._held = ""

    def push(self, token):
        text = self._held + LETTERS[token]
        self._held = "q" if text.endswith("q") else ""
        return text.removesuffix("q")

    def flush(self):
        text, self._held = self._held, ""
        return text


def spoken(letters, *, max_tokens=100, **params):
    """Feed logits that make greedy sampling say `letters`; "z" is the end of turn."""
    chosen = SamplingParams(**params)
    answer = Answer(
        chosen,
        max_tokens=max_tokens,
        end_tokens=frozenset({END}),
        sampler=Sampler(chosen, [0], 26),
        decoder=LetterDecoder(),
    )
    for letter in letters:
        if answer.finish_reason is not None:
            break
        logits = np.zeros(26, dtype=np.float32)
        logits[LETTERS.index(letter)] = 9
        logits[0] += 1
        answer.take(logits)
    return answer


def outcome(answer):
    return answer.text, "".join(LETTERS[token] for token in answer.tokens), answer.finish_reason


def test_answer_ends_at_max_tokens_with_everything_shown():
    assert outcome(spoken("helloq", max_tokens=6)) == ("helloq", "helloq", "length")


def test_answer_ends_at_the_end_of_turn_which_is_a_token_but_not_text():
    assert outcome(spoken("hiqzmore")) == ("hiq", "hiqz", "stop")


def test_end_of_turn_as_the_last_allowed_token_is_a_stop():
    assert outcome(spoken("hiz", max_tokens=3)) == ("hi", "hiz", "stop")


def test_end_of_turn_can_be_ignored_but_stop_tokens_still_count():
    found = outcome(spoken("hizho", ignore_eos=True, stop_token_ids=[LETTERS.index("o")]))
    assert found == ("hizh", "hizho", "stop")


def test_answer_ends_before_a_stop_string_that_spans_tokens():
    assert outcome(spoken("hellonow", stop=["xx", "lo"])) == ("hel", "hello", "stop")


def test_stop_string_completed_by_withheld_text_is_found():
    assert outcome(spoken("heq", max_tokens=3, stop="eq")) == ("h", "heq", "stop")


def test_open_start_of_a_stop_string_is_shown_at_the_end():
    assert outcome(spoken("hel", max_tokens=3, stop="lo")) == ("hel", "hel", "length")
    assert outcome(spoken("helz", stop="lo")) == ("hel", "helz", "stop")


def test_nothing_ends_the_answer_before_min_tokens():
    # "z" is forbidden twice: the runner-up "a" is said instead.
    assert outcome(spoken("zzbz", min_tokens=2)) == ("aab", "aabz", "stop")
    assert outcome(spoken("lolonow", min_tokens=2, stop="lo")) == ("lo", "lolo", "stop")


def test_aborted_answer_shows_what_was_withheld():
    answer = spoken("helq", stop="lqx")
    assert answer.text == "he"
    answer.finish("abort")
    assert outcome(answer) == ("helq", "helq", "abort")


def test_logprobs_are_those_of_unmodified_logits():
    answer = spoken("hz", logprobs=2, logit_bias={LETTERS.index("h"): 50.0})
    first = answer.logprobs_of(slice(None))[0]
    assert [token for token, _ in first.top] == [LETTERS.index("h"), 0]
    total = np.log(np.exp(9) + np.exp(1) + 24)
    assert first.logprob == pytest.approx(9 - total)
    assert first.top[1][1] == pytest.approx(1 - total)
    assert len(answer.logprobs) == len(answer.tokens) == 2
    assert spoken("hz").logprobs_of(slice(None)) is None


def test_failed_draw_adds_nothing():
    answer = spoken("he")
    with pytest.raises(NativeError):
        answer.take(np.full(26, np.nan, dtype=np.float32))
    assert outcome(answer) == ("he", "he", None)
