"""A replay asks the executor for the right rows in the right mode, and refuses what has no room."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ellm import LLM
from ellm.config.attention import EXACT, AttentionConfig
from ellm.errors import AbortedError, CapacityError, NativeError, RequestError
from ellm.program.executor import ChoiceRule, Estimate
from ellm.sparse.counts import ChoiceTotals
from ellm.sparse.policy import DEFAULT_SPARSE_FROM_TOKENS
from tests.support.byte_tokenizer import END, VOCAB_SIZE
from tests.support.fake_engine import PROMPT, PROMPTS, TOKENIZER, free_blocks, make
from tests.support.fake_executor import FakeExecutor, expected_greedy, logits_after
from tests.support.tiny_models import tiny_config

SPARSE = AttentionConfig(mode="sparse", mass=0.9, tokens=640)
SPARSE_RULE = ChoiceRule(Estimate.SCAN, mass=0.9, max_blocks=10)
BLOCK = list(b"a block of a contract, " * 3)[:64]


class CountingExecutor(FakeExecutor):
    """Says that every row with a choice read 3 of 10 blocks."""

    def step(self, tokens, rows, logits_rows):
        for run in rows:
            if run.choices is not None:
                run.choices.counts[:] = [10, 3, 0, 0.5, 2]
        return super().step(tokens, rows, logits_rows)

    @property
    def runs(self):
        """Start, rows and rule of every step."""
        runs = [run for (run,) in self.steps]
        return [(r.start, r.count, None if r.choices is None else r.choices.rule) for r in runs]


def answer_of(prompt, count):
    with make().replay(len(prompt) + count) as replay:
        replay.read(prompt)
        return replay.answer(EXACT, count)


def greedy_until_end(prompt, count):
    tokens = expected_greedy(prompt, count)
    return tokens[: tokens.index(END)] if END in tokens else tokens


def logits_after_each(prompt, tail):
    texts = itertools.accumulate(([token] for token in tail), initial=list(prompt))
    next(texts)
    return [logits_after(np.array(text, np.int32).tobytes(), VOCAB_SIZE) for text in texts]


@pytest.mark.parametrize("prompt", [PROMPT, *PROMPTS, BLOCK])
def test_answers_are_greedy(prompt):
    answer = answer_of(prompt, 12)
    assert answer.token_ids == greedy_until_end(prompt, 12)
    assert answer.text == make().tokenizer.decode(answer.token_ids)


def test_an_answer_ends_before_its_end_token():
    prompts = ([byte] * 5 for byte in range(256))
    prompt = next(each for each in prompts if 1 < len(greedy_until_end(each, 40)) < 40)
    answer = answer_of(prompt, 40).token_ids
    assert answer == greedy_until_end(prompt, 40)
    # Also where it is the first that could follow.
    assert answer_of(prompt + answer, 40).token_ids == []


def test_prompts_are_read_exactly_in_chunks_and_answers_row_by_row_in_their_mode():
    executor = CountingExecutor()
    with make(executor, rows_per_chunk=50).replay(140) as replay:
        heard = []
        replay.read(BLOCK * 2, heard.append)
        assert executor.runs == [(0, 50, None), (50, 50, None), (100, 28, None)]
        assert heard == [50, 100, 128]
        for mode, rule in ((EXACT, None), (SPARSE, SPARSE_RULE)):
            for rows in (lambda m: replay.answer(m, 4), lambda m: list(replay.tail([1, 2, 3], m))):
                executor.steps.clear()
                rows(mode)
                assert executor.runs == [(position, 1, rule) for position in (128, 129, 130)]


def test_auto_is_exact_or_sparse_by_the_position_of_each_row():
    executor = CountingExecutor(num_blocks=257)
    start = DEFAULT_SPARSE_FROM_TOKENS - 1
    config = tiny_config("llama", vocab_size=VOCAB_SIZE, context_length=start + 100)
    llm = LLM.from_parts(executor, TOKENIZER, config, rows_per_chunk=64)
    with llm.replay(start + 3) as replay:
        replay.read([1] * start)
        replay.answer(AttentionConfig(mode="auto", mass=0.9, tokens=640), 3)
    assert executor.runs[-2:] == [(start, 1, None), (start + 1, 1, SPARSE_RULE)]


def test_only_the_last_logits_of_a_prompt_are_asked_for():
    asked = []

    class Recorder(FakeExecutor):
        def step(self, tokens, rows, logits_rows):
            asked.append(logits_rows.tolist())
            return super().step(tokens, rows, logits_rows)

    with make(Recorder(), rows_per_chunk=50).replay(128) as replay:
        replay.read(BLOCK * 2)
    assert asked == [[], [], [27]]


def test_totals_are_those_of_the_last_answer_or_tail():
    three_rows = ChoiceTotals(3, 30, 9, 0, 0.25, Estimate.SCAN)
    with make(CountingExecutor()).replay(128) as replay:
        assert replay.totals == ChoiceTotals()
        replay.read(BLOCK)
        answer = replay.answer(SPARSE, 4)
        assert replay.totals == three_rows
        assert (answer.blocks_read, answer.blocks_total, answer.skipped_mass) == (9, 30, 0.25)
        exact = replay.answer(EXACT, 4)
        assert (exact.blocks_read, exact.blocks_total, exact.skipped_mass) == (0, 0, 0.0)
        assert replay.totals == ChoiceTotals()
        rows = [replay.totals.rows for _ in replay.tail([1, 2, 3], SPARSE)]
        assert rows == [1, 2, 3]
        assert replay.totals == three_rows


def test_a_tail_says_what_follows_each_of_its_tokens_and_can_be_repeated():
    tail = list(b"and then")
    expected = logits_after_each(BLOCK, tail)
    with make().replay(128) as replay:
        replay.read(BLOCK)
        for _ in range(2):
            np.testing.assert_array_equal(list(replay.tail(tail, SPARSE)), expected)
        # One that is left in the middle is no trace either.
        next(replay.tail([9], EXACT))
        np.testing.assert_array_equal(list(replay.tail(tail, EXACT)), expected)
        assert replay.answer(EXACT, 12).token_ids == greedy_until_end(BLOCK, 12)


def test_a_prompt_takes_the_place_of_the_one_before():
    with make().replay(160) as replay:
        for prompt in (PROMPTS[2], PROMPTS[0], BLOCK * 2, PROMPT):
            replay.read(prompt)
            assert replay.answer(EXACT, 12).token_ids == greedy_until_end(prompt, 12)


def test_blocks_are_given_back_and_forgotten():
    executor = FakeExecutor()
    llm = make(executor)
    with llm.replay(130) as replay:
        assert free_blocks(llm) == 5
        replay.read(PROMPT)
    assert free_blocks(llm) == 8
    assert len(executor.forgotten) == 3


def test_more_than_the_context_is_refused_at_once():
    with pytest.raises(CapacityError), make().replay(513):
        pass


def tail_of(replay, tokens):
    return list(replay.tail(tokens, EXACT))


@pytest.mark.parametrize(
    ("prompt", "call", "message"),
    [
        (None, lambda replay: replay.answer(EXACT, 4), "expected a prompt"),
        (None, lambda replay: tail_of(replay, [1]), "expected a prompt"),
        (None, lambda replay: replay.read([]), "expected a prompt"),
        (None, lambda replay: replay.read([*BLOCK, *BLOCK, 1]), "at most 128 tokens"),
        (BLOCK, lambda replay: replay.answer(EXACT, 65), "has 1 to 64"),
        ([*BLOCK, 1], lambda replay: replay.answer(EXACT, 64), "at most 128 tokens"),
        (BLOCK, lambda replay: tail_of(replay, [1] * 65), "at most 128 tokens"),
        (BLOCK[:63], lambda replay: tail_of(replay, [1]), "multiple of 64"),
        ([*BLOCK, 1], lambda replay: tail_of(replay, [1]), "multiple of 64"),
    ],
)
def test_what_has_no_room_is_refused_and_runs_nothing(prompt, call, message):
    executor = FakeExecutor()
    with make(executor).replay(128) as replay:
        if prompt is not None:
            replay.read(prompt)
        steps = len(executor.steps)
        with pytest.raises(RequestError, match=message):
            call(replay)
        assert len(executor.steps) == steps
        if prompt is not None:
            assert replay.answer(EXACT, 12).token_ids == greedy_until_end(prompt, 12)


def test_all_that_has_room_is_answered():
    with make().replay(128) as replay:
        replay.read(BLOCK)
        assert replay.answer(EXACT, 64).token_ids == greedy_until_end(BLOCK, 64)
        assert len(list(replay.tail(BLOCK, EXACT))) == 64


@pytest.mark.parametrize("tokens", [0, -1])
def test_an_answer_has_at_least_one_token(tokens):
    executor = FakeExecutor()
    with make(executor).replay(128) as replay:
        replay.read(BLOCK)
        with pytest.raises(RequestError, match="max_tokens"):
            replay.answer(EXACT, tokens)
        assert len(executor.steps) == 1


def test_abort_ends_an_answer_between_its_steps():
    executor = FakeExecutor()
    llm = make(executor)
    executor.before_step = lambda number: llm.abort() if number == 3 else None
    with llm.replay(128) as replay:
        replay.read(BLOCK)
        with pytest.raises(AbortedError):
            replay.answer(EXACT, 12)
        assert len(executor.steps) == 3
    assert free_blocks(llm) == 8


def test_a_prompt_that_was_not_read_to_its_end_is_not_answered():
    def fail(number):
        if number == 3:
            raise NativeError("the second chunk of the second prompt")

    with make(FakeExecutor(before_step=fail), rows_per_chunk=64).replay(192) as replay:
        replay.read(BLOCK)
        with pytest.raises(NativeError):
            replay.read([*PROMPTS[2], *PROMPT])
        with pytest.raises(RequestError, match="expected a prompt"):
            replay.answer(EXACT, 12)
