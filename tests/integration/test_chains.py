"""Chains over an executor whose logits reveal any wrong token in KV: answers are those without."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ellm import SamplingParams
from ellm.engine.chains import Chains
from ellm.errors import NativeError
from ellm.speculative.draft_model import DraftModel
from ellm.speculative.source import Outlook
from ellm.speculative.step_times import StepTimes
from ellm.speculative.suffix import SuffixChances, SuffixDrafter
from tests.support.byte_tokenizer import VOCAB_SIZE
from tests.support.drafters import FlatTimes, OracleDrafter, RandomDrafter, timeless
from tests.support.fake_engine import GREEDY, PROMPT, PROMPTS, free_blocks, make
from tests.support.fake_executor import FakeExecutor, expected_greedy
from tests.support.suffix import NaiveSuffixIndex

SEED = 5


def chains_of(kind, *, most=8, log=None):
    log = [] if log is None else log
    chances = SuffixChances()
    makers = {
        "random": [lambda: RandomDrafter(VOCAB_SIZE, log)],
        "oracle": [lambda: OracleDrafter(VOCAB_SIZE, expected_greedy, log)],
        "sure": [lambda: OracleDrafter(VOCAB_SIZE, expected_greedy, log, error_rate=0.0)],
        "suffix": [lambda: SuffixDrafter(NaiveSuffixIndex(), chances)],
        "all": [
            lambda: SuffixDrafter(NaiveSuffixIndex(), chances),
            lambda: OracleDrafter(VOCAB_SIZE, expected_greedy, log),
            lambda: RandomDrafter(VOCAB_SIZE, log),
        ],
    }
    draft = None
    if kind == "draft_model":
        executor = FakeExecutor(num_blocks=9, max_rows=128)
        draft = DraftModel(
            executor, vocab_size=VOCAB_SIZE, window_tokens=64, common_tokens=VOCAB_SIZE // 2
        )
        draft.times = FlatTimes(1e-6)
        makers["draft_model"] = [draft.open]
    return timeless(Chains(makers[kind], most=most, draft_model=draft))


KINDS = ["random", "oracle", "suffix", "draft_model", "all"]


def essence(output):
    return output.text, output.token_ids, output.finish_reason, output.logprobs


@settings(deadline=None, max_examples=150)
@given(
    prompts=st.lists(st.binary(min_size=1, max_size=150), min_size=1, max_size=4),
    kind=st.sampled_from(KINDS),
    most=st.integers(1, 16),
    rows=st.sampled_from([2, 7, 64, 512]),
    temperature=st.sampled_from([0.0, 0.7]),
    max_tokens=st.sampled_from([1, 2, 40, 150]),
    stop=st.sampled_from([(), ("a",), ("ab", "\u00e9")]),
    min_tokens=st.sampled_from([0, 1]),
)
def test_answers_are_those_without_chains(
    prompts, kind, most, rows, temperature, max_tokens, stop, min_tokens
):
    params = SamplingParams(
        temperature=temperature,
        seed=SEED,
        max_tokens=max_tokens,
        logprobs=2,
        presence_penalty=0.5,
        repetition_penalty=1.2,
        top_k=50,
        stop=stop,
        min_tokens=min_tokens,
    )
    ids = [list(prompt) for prompt in prompts]
    plain = make(FakeExecutor(num_blocks=12), rows_per_chunk=rows)
    log = []
    chained = make(
        FakeExecutor(num_blocks=12), rows_per_chunk=rows, chains=chains_of(kind, most=most, log=log)
    )
    assert [essence(out) for out in chained.generate(ids, params)] == [
        essence(out) for out in plain.generate(ids, params)
    ]
    assert free_blocks(chained) == 12
    assert all(drafter.closed for drafter in log)


@pytest.mark.parametrize("kind", KINDS)
def test_sources_are_told_of_committed_tokens_alone(kind):
    log = []
    llm = make(chains=chains_of(kind, log=log))
    out = llm.generate(PROMPT, SamplingParams(max_tokens=40, ignore_eos=True))
    for drafter in log:
        told = [*PROMPT, *out.token_ids]
        # The step that ends an answer needs no more guesses.
        assert drafter.told == told[: len(drafter.told)]
        assert len(drafter.told) >= len(PROMPT) + 1


def test_right_guesses_save_steps():
    executor = FakeExecutor()
    llm = make(executor, chains=chains_of("sure", most=4))
    out = llm.generate(PROMPT, SamplingParams(max_tokens=100, ignore_eos=True))
    assert out.token_ids == expected_greedy(PROMPT, 100)
    stats = out.stats
    assert len(executor.steps) < 60
    in_answer = [step for step in executor.steps if step[0].start >= len(PROMPT)]
    assert stats.tokens_per_step == pytest.approx(99 / len(in_answer))
    assert stats.accepted_tokens == stats.proposed_tokens > 40
    assert stats.acceptance_rate == 1.0
    counts = stats.guesses["oracle"]
    assert counts.accepted_by_position == counts.proposed_by_position
    assert sum(counts.proposed_by_position) == counts.proposed_tokens


def test_wrong_guesses_are_counted_as_such():
    llm = make(chains=chains_of("random", most=4))
    stats = llm.generate(PROMPT, GREEDY).stats
    assert stats.accepted_tokens < stats.proposed_tokens / 4
    assert stats.guesses["random"].proposed_tokens == stats.proposed_tokens
    assert make().generate(PROMPT, GREEDY).stats.tokens_per_step == 1.0


def test_a_request_can_do_without_or_with_fewer_guesses():
    for limit in (0, 1, 2):
        executor = FakeExecutor()
        llm = make(executor, chains=chains_of("random", most=8))
        params = SamplingParams(max_tokens=30, ignore_eos=True, chain_length=limit)
        assert llm.generate(PROMPT, params).token_ids == expected_greedy(PROMPT, 30)
        widest = max(part.count for step in executor.steps for part in step if part.start > 20)
        assert widest <= 1 + limit


def test_the_last_token_of_an_answer_needs_no_block_more():
    executor = FakeExecutor(num_blocks=2)
    llm = make(executor, chains=chains_of("sure", most=16))
    params = SamplingParams(max_tokens=128 - len(PROMPT) + 1, ignore_eos=True)
    with pytest.raises(Exception, match="context"):
        llm.generate([1] * 128, params)
    assert len(llm.generate(PROMPT, params).token_ids) == 128 - len(PROMPT)


def test_rows_of_all_sequences_fit_one_step():
    executor = FakeExecutor(num_blocks=12, max_rows=7)
    llm = make(executor, rows_per_chunk=7, chains=chains_of("sure", most=8))
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [out.token_ids for out in outputs] == [expected_greedy(p, 12) for p in PROMPTS]
    assert max(sum(part.count for part in step) for step in executor.steps) <= 7


def test_stream_gives_the_same_pieces_in_fewer_chunks():
    llm = make(chains=chains_of("sure"))
    chunks = list(llm.stream(PROMPT, GREEDY))
    assert [token for chunk in chunks for token in chunk.token_ids] == expected_greedy(PROMPT, 12)
    assert max(len(chunk.token_ids) for chunk in chunks) > 1


@pytest.mark.parametrize("kind", ["oracle", "draft_model"])
def test_abort_during_a_chain_ends_the_answer_and_frees_everything(kind):
    chains = chains_of(kind)
    executor = FakeExecutor(before_step=lambda number: number == 14 and llm.abort())
    llm = make(executor, chains=chains)
    out = llm.generate(PROMPT, SamplingParams(max_tokens=200, ignore_eos=True))
    assert out.finish_reason == "abort"
    assert out.token_ids == expected_greedy(PROMPT, 200)[: len(out.token_ids)]
    assert free_blocks(llm) == 8
    assert llm.generate(PROMPT, GREEDY).token_ids == expected_greedy(PROMPT, 12)


def test_abort_reaches_the_draft_model():
    chains = chains_of("draft_model")
    draft = chains._draft_model
    llm = make(chains=chains)
    draft.executor.before_step = lambda number: number == 6 and llm.abort()
    out = llm.generate(PROMPT, SamplingParams(max_tokens=200, ignore_eos=True))
    assert out.finish_reason == "abort"
    assert free_blocks(llm) == 8
    assert draft.pool.num_free == 9


def test_a_failing_source_is_left_out_and_told(caplog):
    class Failing(RandomDrafter):
        name = "failing"

        def guess(self, count):
            raise NativeError(f"no logits for {count} today")

    log = []
    llm = make(chains=Chains([lambda: Failing(VOCAB_SIZE, log)], most=4))
    assert llm.generate(PROMPT, GREEDY).token_ids == expected_greedy(PROMPT, 12)
    assert log[0].closed
    assert len([r for r in caplog.records if "no logits for" in r.message]) == 1


def test_logits_that_are_no_numbers_fail_the_request_as_without_chains():
    reference = expected_greedy(PROMPT, 12)
    llm = make(FakeExecutor(poison=reference[5]), chains=chains_of("sure"))
    with pytest.raises(NativeError):
        llm.generate(PROMPT, GREEDY)
    assert free_blocks(llm) == 8


def test_a_step_that_fails_leaves_sequences_to_go_on():
    def fail(number):
        if number in (9, 13):
            raise NativeError("once")

    for kind in KINDS:
        executor = FakeExecutor(before_step=fail)
        llm = make(executor, chains=chains_of(kind))
        opened = llm._open
        sequence = opened.sequence(PROMPT, GREEDY)
        opened.core.submit([sequence])
        for _ in range(60):
            if sequence.finished:
                break
            try:
                opened.core.step()
            except NativeError:
                continue
        assert sequence.answer.tokens == expected_greedy(PROMPT, 12)


def test_callers_in_threads_share_chains():
    llm = make(FakeExecutor(num_blocks=16), chains=chains_of("all", most=4))
    results = {}

    def ask(name, prompt):
        results[name] = llm.generate(prompt, GREEDY).token_ids

    threads = [threading.Thread(target=ask, args=(i, p)) for i, p in enumerate(PROMPTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[i] for i in range(len(PROMPTS))] == [expected_greedy(p, 12) for p in PROMPTS]
    assert free_blocks(llm) == 16


def test_a_costly_source_is_not_asked_where_it_cannot_pay():
    asked = []

    class Slow(RandomDrafter):
        name = "slow"
        outlook = Outlook(chance=0.9, most=4, seconds_per_token=10.0, first_seconds=0.0)

        def guess(self, count):
            asked.append(count)
            return super().guess(count)

    llm = make(chains=Chains([lambda: Slow(VOCAB_SIZE)], most=4))
    llm.generate(PROMPT, GREEDY)
    assert asked == []


class DearTimes(StepTimes):
    """Every row seems to take as long as the first."""

    def predict(self, mode, depth_tokens, rows):
        del mode, depth_tokens
        return 1.0 * rows


def test_guesses_that_seem_not_to_pay_are_tried_now_and_then():
    executor = FakeExecutor()
    llm = make(executor, chains=chains_of("sure", most=4))
    llm._open.core._chains._times = DearTimes()
    llm.generate(PROMPT, SamplingParams(max_tokens=200, ignore_eos=True))
    tried = [step for step in executor.steps if step[0].start > 40 and step[0].count > 1]
    assert 2 <= len(tried) <= 8


def test_chains_are_cut_where_auto_attention_changes_its_rule():
    from ellm.config.attention import AttentionConfig
    from ellm.sparse.policy import AttentionPolicy

    policy = AttentionPolicy(AttentionConfig(mode="auto"))
    edge = policy.sparse_from_tokens
    assert policy.rows_alike(edge - 3, 8) == 3
    assert policy.rows_alike(edge, 8) == 8
    assert AttentionPolicy(AttentionConfig(mode="sparse")).rows_alike(edge - 3, 8) == 8


def test_sampled_tokens_of_a_chain_have_the_plain_distribution():
    """Chi-square over a toy distribution, with a source that guesses the likeliest or at random."""
    probabilities = np.array([0.5, 0.25, 0.15, 0.1])

    class Toy(FakeExecutor):
        def step(self, tokens, rows, logits_rows):
            super().step(tokens, rows, logits_rows)
            logits = np.full((len(logits_rows), VOCAB_SIZE), -np.inf, np.float32)
            logits[:, 97:101] = np.log(probabilities)
            return logits

    class Favourite(RandomDrafter):
        def guess(self, count):
            return [97 + self._random.choice([0, 0, 1, 3]) for _ in range(count)]

    llm = make(Toy(), chains=Chains([lambda: Favourite(VOCAB_SIZE)], most=5))
    counts = np.zeros(4)
    pairs = np.zeros((4, 4))
    for seed in range(40):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=100, ignore_eos=True)
        drawn = np.array(llm.generate(PROMPT, params).token_ids) - 97
        counts += np.bincount(drawn, minlength=4)
        np.add.at(pairs, (drawn[:-1], drawn[1:]), 1)
    expected = probabilities * counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # 3 degrees of freedom, p = 0.001
    expected = np.outer(probabilities, probabilities) * pairs.sum()
    assert ((pairs - expected) ** 2 / expected).sum() < 37.7  # 15 degrees of freedom, p = 0.001
