"""Restored equals recomputed: the same tokens and logits, whatever a block went through."""

from __future__ import annotations

import secrets

import numpy as np
import pytest

from ellm import LLM, SamplingParams
from ellm.config.attention import AttentionConfig
from ellm.engine.prefixes import PrefixConfig
from ellm.kv.disk.disk_cache import DiskCache
from ellm.models import ARCHITECTURES
from tests.support.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from tests.support.native_models import native_executor
from tests.support.tiny_models import tiny_model

MODES = {
    "exact": AttentionConfig(),
    "bounded": AttentionConfig(mode="bounded", mass=0.6),
    "sparse": AttentionConfig(mode="sparse", mass=0.3),
}
CASES = [("int8", mode) for mode in MODES] + [("f16", "exact"), ("f32", "exact")]
SECRET = secrets.token_bytes(32)
TEXT = np.random.default_rng(3).integers(0, 256, 1500, dtype=np.int32).tolist()
PROMPT = TEXT[:1100]
HALF = [*TEXT[:600], *TEXT[1100:1500]]
NEXT_TURN = 300
PARAMS = SamplingParams(max_tokens=100, ignore_eos=True, logprobs=5)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ELLM_CACHE", str(tmp_path / "images"))


def essence(output):
    return output.token_ids, output.logprobs


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("kv_type", "mode"), CASES)
def test_blocks_from_memory_and_disk_give_the_bits_of_reading_again(
    architecture, kv_type, mode, tmp_path
):
    model = tiny_model(architecture, vocab_size=VOCAB_SIZE, context_length=4096)

    def engine(reuse=None, num_blocks=64):
        executor = native_executor(model, kv_type=kv_type, num_blocks=num_blocks)
        return LLM.from_parts(
            executor, byte_tokenizer(), model.config, attention=MODES[mode], reuse=reuse
        )

    def kept(num_blocks=64):
        block_bytes = native_executor(model, kv_type=kv_type).block_bytes
        disk = DiskCache.open(
            tmp_path / "kv", fingerprint=bytes(32), block_bytes=block_bytes, quota_bytes=1 << 28
        )
        return engine(PrefixConfig(SECRET, bytes(32), disk), num_blocks)

    plain = engine()
    first = plain.generate(PROMPT, PARAMS)
    turn = [*PROMPT, *first.token_ids, *TEXT[:NEXT_TURN]]
    expected = {
        "prompt": essence(first),
        "half": essence(plain.generate(HALF, PARAMS)),
        "turn": essence(plain.generate(turn, PARAMS)),
    }
    prompts = {"prompt": PROMPT, "half": HALF, "turn": turn}
    with kept() as llm:
        assert essence(llm.generate(PROMPT, PARAMS)) == expected["prompt"]
        for name, prompt in prompts.items():
            out = llm.generate(prompt, PARAMS)
            assert essence(out) == expected[name], name
            assert out.stats.cached_tokens_memory >= 576
    # A new process, with room for one prompt at a time: evicted and restored in turn.
    with kept(num_blocks=25) as llm:
        for name in ("prompt", "half", "turn", "half", "prompt"):
            out = llm.generate(prompts[name], PARAMS)
            assert essence(out) == expected[name], name
            assert out.stats.cached_tokens_memory + out.stats.cached_tokens_disk >= 576
            if name == "prompt":
                assert out.stats.cached_tokens_disk > 0
