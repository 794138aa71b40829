"""However a request ends - failure, abort, close - it leaves nothing behind."""

import gc
import threading
import weakref

import pytest

from ellm import AbortedError, NativeError, RequestError, SamplingParams
from tests.support.fake_engine import GREEDY, PROMPT, PROMPTS, free_blocks, make
from tests.support.fake_executor import FakeExecutor, expected_greedy


def raise_at(step, error):
    def before_step(number):
        if number == step:
            raise error

    return before_step


@pytest.mark.parametrize("error", [NativeError("lost"), KeyboardInterrupt(), ValueError("bug")])
@pytest.mark.parametrize("step", [1, 2, 5])
def test_failed_step_is_raised_and_leaves_nothing_behind(error, step):
    executor = FakeExecutor(before_step=raise_at(step, error))
    llm = make(executor, rows_per_chunk=64)
    with pytest.raises(type(error)):
        llm.generate([PROMPT, PROMPTS[2]], GREEDY)
    assert free_blocks(llm) == 8
    assert llm.generate(PROMPT, GREEDY).token_ids == expected_greedy(PROMPT, 12)


def test_interrupt_while_streaming_leaves_nothing_behind():
    llm = make(FakeExecutor(before_step=raise_at(4, KeyboardInterrupt())))
    chunks = llm.stream(PROMPT, GREEDY)
    with pytest.raises(KeyboardInterrupt):
        list(chunks)
    assert free_blocks(llm) == 8
    assert llm.generate(PROMPT, GREEDY).token_ids == expected_greedy(PROMPT, 12)


def test_failing_progress_callback_leaves_nothing_behind():
    def fail(_progress):
        raise RuntimeError("callback")

    llm = make()
    for call in (llm.generate, llm.score, lambda *a, **k: list(llm.stream(*a, **k))):
        with pytest.raises(RuntimeError, match="callback"):
            call(PROMPT, progress=fail)
    assert free_blocks(llm) == 8


def test_request_with_garbage_logits_fails_alone():
    llm = make(FakeExecutor(poison=7))
    streaming = llm.stream(PROMPT, GREEDY)
    first = next(streaming)
    with pytest.raises(NativeError, match="logits"):
        llm.generate([7, 8], GREEDY)
    rest = [token for chunk in streaming for token in chunk.token_ids]
    assert first.token_ids + rest == expected_greedy(PROMPT, 12)
    with pytest.raises(NativeError, match="position 0"):
        llm.score([7, 8, 9])
    assert free_blocks(llm) == 8


def test_unfinished_stream_does_not_disturb_others_and_goes_on():
    llm = make()
    streaming = llm.stream(PROMPT, GREEDY)
    tokens = list(next(streaming).token_ids)
    assert llm.generate(PROMPTS, GREEDY)[2].token_ids == expected_greedy(PROMPTS[2], 12)
    chunks = list(streaming)
    assert chunks[-1].finish_reason == "length"
    tokens += [token for chunk in chunks for token in chunk.token_ids]
    assert tokens == expected_greedy(PROMPT, 12)


def test_closed_stream_frees_its_blocks_and_an_unstarted_one_holds_none():
    llm = make()
    streaming = llm.stream(PROMPT, SamplingParams(max_tokens=None))
    assert free_blocks(llm) == 8
    next(streaming)
    assert free_blocks(llm) == 0
    streaming.close()
    assert free_blocks(llm) == 8
    llm.stream(PROMPT).close()
    assert llm.generate(PROMPT, GREEDY).token_ids == expected_greedy(PROMPT, 12)


@pytest.mark.parametrize("step", [1, 3, 6])
def test_abort_ends_all_answers_with_what_they_have(step):
    llm = None

    def before_step(number):
        if number == step:
            threading.Thread(target=llm.abort).run()

    llm = make(FakeExecutor(before_step=before_step), rows_per_chunk=100)
    outputs = llm.generate([PROMPT, PROMPTS[2]], GREEDY)
    assert [out.finish_reason for out in outputs] == ["abort", "abort"]
    for prompt, out in zip([PROMPT, PROMPTS[2]], outputs, strict=True):
        assert out.token_ids == expected_greedy(prompt, len(out.token_ids))
        assert len(out.token_ids) < 12
    assert free_blocks(llm) == 8
    assert llm.generate(PROMPT, GREEDY).token_ids == expected_greedy(PROMPT, 12)


def test_abort_from_another_thread_ends_a_long_answer():
    started = threading.Event()
    llm = make(FakeExecutor(before_step=lambda number: number == 3 and started.set()))
    aborting = threading.Thread(target=lambda: (started.wait(10), llm.abort()))
    aborting.start()
    reasons = {llm.generate(PROMPT, SamplingParams(max_tokens=None, ignore_eos=True)).finish_reason}
    aborting.join()
    assert reasons <= {"abort", "length"}
    assert llm.generate(PROMPT, GREEDY).finish_reason == "length"


def test_abort_between_steps_of_a_stream_ends_it():
    llm = make()
    streaming = llm.stream(PROMPT, GREEDY)
    first = next(streaming)
    llm.abort()
    (last,) = streaming
    assert (last.token_ids, last.finish_reason) == ([], "abort")
    assert last.stats.answer_tokens == len(first.token_ids)
    assert free_blocks(llm) == 8


def test_abort_without_requests_does_nothing():
    llm = make()
    llm.abort()
    assert llm.generate(PROMPT, GREEDY).token_ids == expected_greedy(PROMPT, 12)


def test_score_can_be_aborted():
    llm = None
    executor = FakeExecutor(before_step=lambda number: number == 2 and llm.abort())
    llm = make(executor, rows_per_chunk=10)
    with pytest.raises(AbortedError):
        llm.score(PROMPTS[2])
    assert len(executor.steps) == 2
    assert free_blocks(llm) == 8
    assert len(llm.score(PROMPTS[2]).top1) == 129


def test_closed_engine_refuses_requests():
    with make() as llm:
        streaming = llm.stream(PROMPT, GREEDY)
        next(streaming)
    assert [chunk.finish_reason for chunk in streaming] == ["abort"]
    for call in (llm.generate, llm.score, llm.stream, lambda _: llm.config):
        with pytest.raises(RequestError, match="closed"):
            call(PROMPT)
    llm.close()
    llm.abort()


def test_closing_lets_go_of_the_executor():
    executor = FakeExecutor()
    gone = weakref.ref(executor)
    llm = make(executor)
    llm.generate(PROMPT, GREEDY)
    del executor
    llm.close()
    gc.collect()
    assert gone() is None
