"""The engine over an executor whose logits reveal any mistake in blocks, positions or order."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ellm import (
    CapacityError,
    ConfigError,
    RequestError,
    SamplingParams,
    TemplateError,
)
from ellm.sampling.logprobs import LogSoftmax
from tests.support.byte_tokenizer import BOS, END, VOCAB_SIZE, byte_tokenizer
from tests.support.fake_engine import GREEDY, PROMPT, PROMPTS, free_blocks, make
from tests.support.fake_executor import FakeExecutor, expected_greedy, logits_after


def essence(output):
    return output.text, output.token_ids, output.finish_reason, output.logprobs


@pytest.mark.parametrize("rows", [1, 7, 64, 512])
def test_greedy_answer_is_that_of_one_token_after_the_other(rows):
    llm = make(rows_per_chunk=rows)
    for prompt in (PROMPT, PROMPTS[2]):
        assert llm.generate(prompt, GREEDY).token_ids == expected_greedy(prompt, 12)
    assert free_blocks(llm) == 8


@settings(deadline=None, max_examples=40)
@given(
    prompts=st.lists(st.binary(min_size=1, max_size=180), min_size=1, max_size=5),
    rows=st.sampled_from([1, 3, 64, 512]),
    temperature=st.sampled_from([0.0, 0.8]),
    max_tokens=st.sampled_from([1, 2, 30]),
)
def test_prompts_together_are_answered_as_each_alone(prompts, rows, temperature, max_tokens):
    params = SamplingParams(
        temperature=temperature, seed=5, max_tokens=max_tokens, logprobs=3, presence_penalty=0.5
    )
    ids = [list(prompt) for prompt in prompts]
    together = make(rows_per_chunk=rows)
    outputs = together.generate(ids, params)
    alone = make()
    assert [essence(out) for out in outputs] == [essence(alone.generate(p, params)) for p in ids]
    assert free_blocks(together) == 8


def test_prompts_together_share_steps():
    executor = FakeExecutor()
    make(executor).generate(PROMPTS, GREEDY)
    assert [len(step) for step in executor.steps] == [4] * 12


def test_prompts_that_do_not_fit_together_take_turns():
    executor = FakeExecutor(num_blocks=3)
    outputs = make(executor).generate(PROMPTS, GREEDY)
    assert [out.token_ids for out in outputs] == [expected_greedy(p, 12) for p in PROMPTS]
    assert max(len(step) for step in executor.steps) < 4


def test_each_prompt_can_have_its_own_parameters():
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (1, 2, 3, 4)]
    assert [len(out.token_ids) for out in make().generate(PROMPTS, params)] == [1, 2, 3, 4]
    for wrong in (params[:3], [*params[:3], {"max_tokens": 4}]):
        with pytest.raises(RequestError, match="param"):
            make().generate(PROMPTS, wrong)


@settings(deadline=None, max_examples=25)
@given(
    prompt=st.binary(min_size=1, max_size=100),
    seed=st.integers(0, 999),
    stop=st.sampled_from([(), ("a",), ("ab", "\u00e9")]),
)
def test_stream_joined_is_the_generated_answer(prompt, seed, stop):
    params = SamplingParams(
        temperature=1.0, seed=seed, stop=stop, max_tokens=60, logprobs=1, top_k=90
    )
    llm = make()
    whole = llm.generate(list(prompt), params)
    chunks = list(llm.stream(list(prompt), params))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [token for chunk in chunks for token in chunk.token_ids] == whole.token_ids
    assert tuple(entry for chunk in chunks for entry in chunk.logprobs) == whole.logprobs
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == whole.finish_reason
    assert chunks[-1].stats.answer_tokens == len(whole.token_ids)
    assert all(chunk.stats is None for chunk in chunks[:-1])


def test_text_is_that_of_the_tokenizer():
    llm = make()
    output = llm.generate(PROMPT, SamplingParams(max_tokens=80, ignore_eos=True))
    assert output.text == llm.tokenizer.decode(output.token_ids)


def test_text_prompt_is_encoded_with_special_tokens_and_one_bos():
    llm = make(tokenizer=byte_tokenizer(add_bos=True))
    expected = expected_greedy([BOS, 97, END, 98], 12)
    for prompt in ("a</s>b", "<s>a</s>b", [BOS, 97, END, 98]):
        assert llm.generate(prompt, GREEDY).token_ids == expected
    assert [out.token_ids for out in llm.generate(["a</s>b", "<s>a</s>b"], GREEDY)] == [
        expected
    ] * 2


def test_chat_goes_through_the_template_and_text_stays_text():
    llm = make()
    messages = [{"role": "user", "content": "a</s>b"}]
    ids = [BOS, *b"user:a</s>b", END, *b"assistant:"]
    answer = llm.chat(messages, GREEDY)
    assert answer.token_ids == expected_greedy(ids, 12)
    assert "".join(c.text for c in llm.chat(messages, GREEDY, stream=True)) == answer.text
    with pytest.raises(RequestError, match="no messages"):
        llm.chat([])
    with pytest.raises(TemplateError):
        make(tokenizer=byte_tokenizer(chat_template=False)).chat(messages)


def test_end_of_turn_ends_the_answer_and_can_be_ignored():
    up = {END: 100.0}
    output = make().generate(PROMPT, SamplingParams(logit_bias=up))
    assert essence(output) == ("", [END], "stop", None)
    late = make().generate(PROMPT, SamplingParams(logit_bias=up, min_tokens=3))
    assert late.token_ids[3:] == [END]
    assert END not in late.token_ids[:3]
    ignored = make().generate(PROMPT, SamplingParams(logit_bias=up, ignore_eos=True, max_tokens=5))
    assert essence(ignored) == ("", [END] * 5, "length", None)


@pytest.mark.parametrize("rows", [1, 64])
def test_answer_ends_with_length_when_the_context_is_full(rows):
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    for context_tokens in (28, 64, 65, 130):
        llm = make(context_tokens=context_tokens, rows_per_chunk=rows)
        output = llm.generate(PROMPT, params)
        assert len(PROMPT) + len(output.token_ids) == context_tokens
        assert output.finish_reason == "length"
        assert output.token_ids == expected_greedy(PROMPT, context_tokens - len(PROMPT))


def test_prompt_that_does_not_fit_is_refused_before_any_work():
    executor = FakeExecutor()
    llm = make(executor, context_tokens=64)
    for tokens, message in ((64, "64 tokens, the context 64"), (1000, "1000 tokens, the context")):
        for call in (llm.generate, llm.stream):
            with pytest.raises(CapacityError, match=message):
                call([97] * tokens)
    with pytest.raises(CapacityError):
        llm.generate([PROMPT, [97] * 64])
    assert executor.steps == []
    assert llm.generate([97] * 63, GREEDY).finish_reason == "length"


@pytest.mark.parametrize(
    "prompt", ["", [], [""], [[]], [-1], [VOCAB_SIZE], [1.5], None, 5, b"x", ["a", None], "\ud800"]
)
def test_bad_prompt_is_refused_and_the_next_answer_is_unchanged(prompt):
    llm = make()
    before = llm.generate(PROMPT, GREEDY)
    with pytest.raises(RequestError):
        llm.generate(prompt, GREEDY)
    assert essence(llm.generate(PROMPT, GREEDY)) == essence(before)


def test_context_larger_than_model_or_cache_is_refused():
    with pytest.raises(ConfigError, match="context_tokens is 513"):
        make(context_tokens=513)
    with pytest.raises(ConfigError, match="rows_per_chunk is 0"):
        make(rows_per_chunk=0)
    with pytest.raises(ConfigError, match=r"2\.\.128"):
        make(FakeExecutor(num_blocks=2), context_tokens=129)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_score_is_that_of_every_prefix(rows):
    tokens = PROMPTS[2] + PROMPT
    scored = make(rows_per_chunk=rows).score(tokens)
    assert scored.top1.shape == scored.logprob.shape == (len(tokens) - 1,)
    for position in range(len(tokens) - 1):
        logits = logits_after(np.array(tokens[: position + 1], np.int32).tobytes(), VOCAB_SIZE)
        assert scored.top1[position] == logits.argmax()
        assert scored.logprob[position] == LogSoftmax.of(logits)(logits[tokens[position + 1]])


def test_score_checks_its_input_and_frees_its_blocks():
    llm = make()
    for tokens in ([], [5], [5, VOCAB_SIZE], "text"):
        with pytest.raises(RequestError):
            llm.score(tokens)
    assert len(llm.score([97] * 512).top1) == 511
    with pytest.raises(CapacityError, match="513 tokens, the context 512"):
        llm.score([97] * 513)
    assert free_blocks(llm) == 8


def test_threads_share_the_engine():
    llm = make()
    outputs = {}

    def ask(index):
        outputs[index] = llm.generate(PROMPTS[index], GREEDY).token_ids

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert outputs == {i: expected_greedy(prompt, 12) for i, prompt in enumerate(PROMPTS)}
    assert free_blocks(llm) == 8


def test_progress_counts_all_prompt_tokens_once():
    seen = []
    make(rows_per_chunk=64).generate(PROMPTS, GREEDY, progress=seen.append)
    total = sum(len(prompt) for prompt in PROMPTS)
    assert [item.done_tokens for item in seen] == [64, 128, total]
    assert {item.total_tokens for item in seen} == {total}
    assert seen[-1].seconds_left == 0
    assert all(item.tokens_per_second > 0 for item in seen)


def test_stats_count_tokens_and_times():
    stats = make().generate(PROMPT, GREEDY).stats
    assert (stats.prompt_tokens, stats.answer_tokens) == (len(PROMPT), 12)
    assert 0 < stats.prompt_seconds <= stats.time_to_first_token_seconds
    assert stats.decode_tokens_per_second == pytest.approx(11 / stats.decode_seconds)
    assert stats.prefill_tokens_per_second == pytest.approx(len(PROMPT) / stats.prompt_seconds)
    assert stats.peak_rss_bytes > 1 << 20
    assert (stats.isa, stats.bytes_per_token) == ("numpy", 0)
    one = make().generate(PROMPT, SamplingParams(max_tokens=1)).stats
    assert (one.decode_tokens_per_second, one.decode_ceiling_tokens_per_second) == (0, 0)
