"""A prompt that is read once and answered in several modes: as if it were read for each of them."""

from __future__ import annotations

import numpy as np
import pytest

from ellm import LLM, SamplingParams
from ellm.config.attention import EXACT, AttentionConfig
from ellm.program.numpy_executor import NumpyExecutor
from ellm.sparse.policy import AttentionPolicy
from tests.support.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from tests.support.choosing_rows import READ, SKIPPED, TOTAL, run_tail
from tests.support.native_models import native_executor, run_chunks
from tests.support.tiny_models import tiny_model

NUM_BLOCKS = 24
TEXT = np.random.default_rng(3).integers(0, 256, 1500, dtype=np.int32)
# So little mass that every mode has an answer of its own.
MODES = [
    EXACT,
    AttentionConfig(mode="sparse", mass=0.3),
    AttentionConfig(mode="bounded", mass=0.6),
    AttentionConfig(mode="block-mean", mass=0.9, tokens=128),
    EXACT,
    AttentionConfig(mode="sparse", mass=0.3),
]


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama", vocab_size=VOCAB_SIZE, context_length=4096, num_layers=1)


@pytest.fixture(params=["numpy", "native"])
def new_executor(request, model, tmp_path, monkeypatch):
    monkeypatch.setenv("ELLM_CACHE", str(tmp_path))
    if request.param == "native":
        return lambda: native_executor(model, kv_type="int8", num_blocks=NUM_BLOCKS)
    return lambda: NumpyExecutor(model.program, model.weights, NUM_BLOCKS)


@pytest.fixture
def new_llm(new_executor, model):
    def make(attention=EXACT):
        return LLM.from_parts(new_executor(), byte_tokenizer(), model.config, attention=attention)

    return make


def test_answers_are_those_of_engines_that_read_the_prompt_for_one_mode(new_llm):
    # The answer goes on over the border of a block, and starts again within the one before.
    prompt = TEXT[:1400].tolist()
    fresh = {}
    for mode in MODES[:4]:
        fresh[mode] = new_llm(mode).generate(prompt, SamplingParams(max_tokens=16))
    assert len({tuple(output.token_ids) for output in fresh.values()}) >= 3
    with new_llm().replay(1416) as replay:
        replay.read(prompt)
        for mode in MODES:
            answer, expected = replay.answer(mode, max_tokens=16), fresh[mode]
            assert answer.token_ids == expected.token_ids
            assert answer.text == expected.text
            assert len(answer.token_ids) == 16
            assert answer.skipped_mass == expected.stats.skipped_mass
            skipped = answer.blocks_total - answer.blocks_read
            assert skipped == expected.stats.kv_blocks_total - expected.stats.kv_blocks_read
            assert (skipped > 0) == (mode != EXACT)


def test_logits_of_a_tail_are_those_of_rows_that_follow_the_prompt_once(new_executor, new_llm):
    prompt, tail = TEXT[:1344], TEXT[1344:1410]
    fresh = {}
    for mode in MODES[:4]:
        executor, rule = new_executor(), AttentionPolicy(mode).rule_at(1344)
        run_chunks(executor, prompt, [512])
        fresh[mode] = run_tail(executor, tail, 1344, rule, rows_per_step=1)
    with new_llm().replay(1410) as replay:
        replay.read(prompt.tolist())
        for mode in MODES:
            logits = list(replay.tail(tail.tolist(), mode))
            np.testing.assert_array_equal(logits, fresh[mode].logits)
            totals, sums = replay.totals, fresh[mode].counts.sum(axis=0)
            assert totals.rows == (0 if mode == EXACT else 66)
            assert (totals.blocks_total, totals.blocks_read) == (sums[TOTAL], sums[READ])
            assert (totals.skipped_mass > 0) == (sums[SKIPPED] > 0) == (mode != EXACT)


def test_answers_and_tails_after_another_prompt_are_those_of_the_new_one(new_llm):
    sparse = MODES[1]
    with new_llm().replay(1500) as fresh:
        fresh.read(TEXT[:832].tolist())
        answer, tail = fresh.answer(sparse, 5), list(fresh.tail([1, 2, 3], sparse))
    with new_llm().replay(1500) as replay:
        replay.read(TEXT[100:1444].tolist())
        assert replay.answer(sparse, 5) != answer
        replay.read(TEXT[:832].tolist())
        assert replay.answer(sparse, 5) == answer
        np.testing.assert_array_equal(list(replay.tail([1, 2, 3], sparse)), tail)
