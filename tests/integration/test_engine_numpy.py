"""The engine over the NumPy executor and tiny random models of every architecture."""

import numpy as np
import pytest

from ellm import LLM, SamplingParams
from ellm.models import ARCHITECTURES
from ellm.program.executor import SequenceRows
from ellm.program.numpy_executor import NumpyExecutor
from tests.support.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from tests.support.tiny_models import tiny_model

PROMPT = list(b"The agreement may be terminated by either party with ninety days' notice in ")
OTHERS = [list(b"Liability"), list(b"is limited to " * 10)]
GREEDY = SamplingParams(max_tokens=20, ignore_eos=True)


@pytest.fixture(scope="module", params=sorted(ARCHITECTURES))
def model(request):
    return tiny_model(request.param, vocab_size=VOCAB_SIZE)


def make(model, rows_per_chunk=512):
    executor = NumpyExecutor(model.program, model.weights, num_blocks=8)
    return LLM.from_parts(executor, byte_tokenizer(), model.config, rows_per_chunk=rows_per_chunk)


def by_hand(model, prompt, count):
    """Read the prompt in one step, then feed back the most likely token."""
    executor = NumpyExecutor(model.program, model.weights, num_blocks=8)
    blocks = np.array([5, 2, 7, 0], dtype=np.int32)
    fed, start, answer = np.array(prompt, dtype=np.int32), 0, []
    while len(answer) < count:
        rows = [SequenceRows(blocks, start, len(fed))]
        logits = executor.step(fed, rows, np.array([len(fed) - 1], dtype=np.int32))
        start += len(fed)
        answer.append(int(logits[0].argmax()))
        fed = np.array(answer[-1:], dtype=np.int32)
    return answer


def test_greedy_answer_equals_a_loop_by_hand(model):
    assert make(model).generate(PROMPT, GREEDY).token_ids == by_hand(model, PROMPT, 20)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_chunks_of_the_prompt_do_not_change_the_answer(model, rows):
    expected = by_hand(model, PROMPT, 20)
    assert make(model, rows).generate(PROMPT, GREEDY).token_ids == expected


def test_prompts_together_are_answered_as_each_alone(model):
    prompts = [PROMPT, *OTHERS]
    outputs = make(model, 64).generate(prompts, GREEDY)
    assert [out.token_ids for out in outputs] == [by_hand(model, p, 20) for p in prompts]


def test_score_agrees_with_generation(model):
    llm = make(model, 64)
    answer = llm.generate(PROMPT, SamplingParams(max_tokens=20, ignore_eos=True, logprobs=0))
    scored = llm.score(PROMPT + answer.token_ids)
    first = len(PROMPT) - 1
    assert scored.top1[first:].tolist() == answer.token_ids
    generated = [entry.logprob for entry in answer.logprobs]
    np.testing.assert_allclose(scored.logprob[first:], generated, atol=1e-4)
