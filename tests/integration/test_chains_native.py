"""Chains on the native executor: same tokens, same logits, same bits in KV as one row per step."""

from __future__ import annotations

import numpy as np
import pytest

from ellm import LLM, SamplingParams
from ellm.config.attention import AttentionConfig
from ellm.engine.chains import Chains
from ellm.models import ARCHITECTURES
from ellm.native import SuffixIndex
from ellm.program.executor import BLOCK_TOKENS
from ellm.speculative.confidence import ConfidenceChances
from ellm.speculative.draft_model import DraftModel
from ellm.speculative.shallow import ShallowModel
from ellm.speculative.suffix import SuffixChances, SuffixDrafter
from tests.support.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from tests.support.drafters import FlatTimes, OracleDrafter, RandomDrafter, timeless
from tests.support.native_models import native_executor
from tests.support.real_models import EVERY_MODEL, model_path
from tests.support.tiny_models import tiny_model

TEXT = np.random.default_rng(3).integers(0, 256, 400, dtype=np.int32).tolist()
# Long enough for blocks to choose from, and for an answer over the border of one.
PROMPT = TEXT * 3
PARAMS = SamplingParams(max_tokens=90, ignore_eos=True, logprobs=5)
MODES = {
    "exact": AttentionConfig(),
    "bounded": AttentionConfig(mode="bounded", mass=0.6),
    "sparse": AttentionConfig(mode="sparse", mass=0.3),
}


class SureChances(ConfidenceChances):
    """A tiny random model is never confident: its guesses are taken all the same."""

    def __init__(self):
        super().__init__(0.9)
        self.least_confidence = 0.0


def answer_and_blocks(llm, prompt, params):
    """Return the finished sequence and its full KV blocks as they are stored."""
    opened = llm._open
    sequence = opened.sequence(prompt, params)
    opened.core.submit([sequence])
    blocks = sequence.blocks
    while not sequence.finished:
        opened.core.step()
        blocks = sequence.blocks if sequence.blocks.size else blocks
    stored = [
        opened.model.executor.read_block(int(block))
        for block in blocks[: sequence.cached_tokens // BLOCK_TOKENS]
    ]
    return sequence, stored


def essence(sequence):
    answer = sequence.answer
    return answer.tokens, answer.logprobs, answer.finish_reason, sequence.choices.totals


def sources(kind, executor, executor_of, expected):
    """Return chains of one kind of source; `expected` is the plain answer."""
    if kind == "random":
        return Chains([lambda: RandomDrafter(VOCAB_SIZE)], most=16)
    if kind == "oracle":

        def follow(told, count):
            place = len(told) - len(PROMPT)
            return expected[place : place + count]

        return Chains([lambda: OracleDrafter(VOCAB_SIZE, follow)], most=16)
    if kind == "suffix":
        chances = SuffixChances()
        return Chains([lambda: SuffixDrafter(SuffixIndex(), chances)], most=5)
    if kind == "shallow":
        # After all layers, mapping nothing: every guess is right, and every row is written early.
        size, layer = executor.hidden_size, executor.num_layers
        executor.add_exit(layer, np.eye(size, dtype=np.float32), np.zeros(size, np.float32))
        shallow = ShallowModel(executor, layer=layer, acceptance=0.9, seconds=1e-6)
        shallow.times = FlatTimes(1e-6)
        shallow.chances = SureChances()
        return Chains([shallow.open], most=4)
    draft = DraftModel(
        executor_of(), vocab_size=VOCAB_SIZE, window_tokens=128, common_tokens=VOCAB_SIZE // 2
    )
    draft.times = FlatTimes(1e-6)
    return Chains([draft.open], most=4, draft_model=draft)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answer_and_kv_are_those_of_one_row_per_step(architecture, mode, temperature):
    model = tiny_model(architecture, vocab_size=VOCAB_SIZE, context_length=4096)
    params = SamplingParams(
        max_tokens=90, ignore_eos=True, logprobs=5, temperature=temperature, seed=1
    )

    def executor_of(threads=1):
        return native_executor(model, kv_type="int8", threads=threads)

    def engine(executor, chains=None):
        return LLM.from_parts(
            executor,
            byte_tokenizer(),
            model.config,
            attention=MODES[mode],
            chains=chains,
        )

    plain, blocks = answer_and_blocks(engine(executor_of()), PROMPT, params)
    for threads, kind in (
        (1, "oracle"),
        (2, "random"),
        (2, "oracle"),
        (1, "suffix"),
        (2, "draft"),
        (1, "shallow"),
    ):
        executor = executor_of(threads)
        chains = timeless(sources(kind, executor, executor_of, plain.answer.tokens))
        chains.measured = False  # rows that are only timed leave no trace either
        chained, chained_blocks = answer_and_blocks(engine(executor, chains), PROMPT, params)
        assert essence(chained) == essence(plain), kind
        assert len(blocks) == len(chained_blocks) > 18
        for ours, theirs in zip(blocks, chained_blocks, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert chained.chains.log.steps <= len(plain.answer.tokens) - 1
        if kind in ("oracle", "shallow") and not temperature:
            assert chained.chains.log.steps < 60


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_other_kv_types_too(kv_type):
    model = tiny_model("qwen2", vocab_size=VOCAB_SIZE, context_length=4096)

    def engine(executor, chains=None):
        return LLM.from_parts(executor, byte_tokenizer(), model.config, chains=chains)

    plain_executor = native_executor(model, kv_type=kv_type)
    plain, blocks = answer_and_blocks(engine(plain_executor), PROMPT, PARAMS)
    for kind in ("oracle", "random", "shallow"):
        executor = native_executor(model, kv_type=kv_type)
        chains = timeless(sources(kind, executor, None, plain.answer.tokens))
        chained, chained_blocks = answer_and_blocks(engine(executor, chains), PROMPT, PARAMS)
        assert essence(chained) == essence(plain)
        assert all(map(np.array_equal, blocks, chained_blocks))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", EVERY_MODEL)
def test_real_models_answer_as_without_chains(name, mode, tmp_path, monkeypatch):
    """The text repeats, so that copies are proposed; times are flat, so that all are checked."""
    prompt = "apple, pear, plum, cherry, apple, pear, PLUM, cherry, apple, pear, plum," * 3
    params = SamplingParams(max_tokens=48, logprobs=3)
    path = model_path(name)
    monkeypatch.setenv("ELLM_CACHE", str(tmp_path))  # without profiles, but not without models
    with LLM(path, context_tokens=512, attention=mode, sparse_mass=0.5, chain_length=8) as llm:
        timeless(llm._open.model.chains)
        chained = llm.generate(prompt, params)
        plain = llm.generate(prompt, SamplingParams(max_tokens=48, logprobs=3, chain_length=0))
    assert chained.token_ids == plain.token_ids
    assert chained.logprobs == plain.logprobs
    assert plain.stats.proposed_tokens == 0
    assert chained.stats.proposed_tokens > 0
