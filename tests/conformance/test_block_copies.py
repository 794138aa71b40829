"""KV blocks can be copied out and in: rows behind them have the bits they would have had."""

from __future__ import annotations

import numpy as np
import pytest

from ellm.config.engine import KV_TYPES
from ellm.errors import ConfigError, NativeError
from ellm.models import ARCHITECTURES
from ellm.program.executor import ChoiceRule, Estimate
from tests.support.choosing_rows import run_tail
from tests.support.native_models import native_executor, run_chunks
from tests.support.tiny_models import tiny_model

PROMPT_BLOCKS = 22
TEXT = np.random.default_rng(6).integers(0, 131, PROMPT_BLOCKS * 64 + 80, dtype=np.int32)
PROMPT, TAIL = TEXT[: PROMPT_BLOCKS * 64], TEXT[PROMPT_BLOCKS * 64 :]
RULES = [None, *(ChoiceRule(estimate, mass=0.8) for estimate in Estimate)]


def copy_blocks(source, target, source_ids, target_ids):
    for old, new in zip(source_ids, target_ids, strict=True):
        target.write_block(int(new), source.read_block(int(old)))


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_behind_copied_blocks_have_the_same_bits(architecture, kv_type):
    model = tiny_model(architecture)
    source, target = (native_executor(model, kv_type=kv_type, num_blocks=40) for _ in range(2))
    run_chunks(source, PROMPT, [512])
    # Other ids, and blocks that have held something else.
    ids = np.random.default_rng(1).permutation(40).astype(np.int32)
    run_chunks(target, TEXT[100:1500], [512], ids)
    copy_blocks(source, target, range(PROMPT_BLOCKS), ids[:PROMPT_BLOCKS])
    for rule in RULES if kv_type == "int8" else [None]:
        expected = run_tail(source, TAIL, PROMPT.size, rule)
        found = run_tail(target, TAIL, PROMPT.size, rule, blocks=ids)
        np.testing.assert_array_equal(found.logits, expected.logits)
        np.testing.assert_array_equal(found.counts, expected.counts)


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_a_copy_has_every_bit_and_the_size_that_is_told(kv_type):
    model = tiny_model("llama")
    source, target = (native_executor(model, kv_type=kv_type) for _ in range(2))
    run_chunks(source, PROMPT[:192], [192])
    copies = [source.read_block(block) for block in range(3)]
    assert {copy.size for copy in copies} == {source.block_bytes}
    assert len({copy.tobytes() for copy in copies}) == 3
    for block, copy in enumerate(copies):
        target.write_block(block, copy)
    again = [target.read_block(block) for block in range(3)]
    np.testing.assert_array_equal(again, copies)


def test_a_changed_copy_changes_the_rows_behind_it():
    # Else the bits above could come from blocks that nobody reads.
    executor = native_executor(tiny_model("llama"), kv_type="int8", num_blocks=40)
    run_chunks(executor, PROMPT, [512])
    expected = run_tail(executor, TAIL, PROMPT.size, None).logits
    copy_blocks(executor, executor, [3], [7])
    assert (run_tail(executor, TAIL, PROMPT.size, None).logits != expected).any(axis=1).all()


def test_rows_within_a_copied_block_are_refused():
    executor = native_executor(tiny_model("llama"), kv_type="int8", num_blocks=40)
    run_chunks(executor, PROMPT, [512])
    within = PROMPT.size - 10
    expected = run_tail(executor, TAIL[:5], within, None).logits
    copy_blocks(executor, executor, [PROMPT_BLOCKS - 1], [PROMPT_BLOCKS - 1])
    for rule in RULES:
        with pytest.raises(ConfigError, match="float form is gone"):
            run_tail(executor, TAIL[:5], within, rule)
    # From the block's start it is read again, and then its float form is there.
    run_tail(executor, PROMPT[-64:-10], PROMPT.size - 64, None)
    np.testing.assert_array_equal(run_tail(executor, TAIL[:5], within, None).logits, expected)


@pytest.mark.parametrize("rule", RULES)
def test_copies_that_are_damaged_end_in_no_crash_and_harm_nobody_else(rule):
    executor = native_executor(tiny_model("llama"), kv_type="int8", num_blocks=40)
    others = np.arange(30, 40, dtype=np.int32)
    expected = run_chunks(executor, PROMPT[:300], [300], others)
    rng = np.random.default_rng(0)
    for _ in range(3):
        for block in range(PROMPT_BLOCKS):
            content = rng.integers(0, 256, executor.block_bytes, dtype=np.uint8)
            executor.write_block(block, content)
        # NaN and infinity among the scales.
        damaged = run_tail(executor, TAIL[:3], PROMPT.size, rule)
        assert not np.isfinite(damaged.logits).all()
    np.testing.assert_array_equal(run_chunks(executor, PROMPT[:300], [300], others), expected)


@pytest.mark.parametrize("block", [-1, 32])
def test_blocks_that_are_not_there_are_refused(block):
    executor = native_executor(tiny_model("llama"), kv_type="int8")
    with pytest.raises(ConfigError, match="KV block id"):
        executor.read_block(block)
    with pytest.raises(ConfigError, match="KV block id"):
        executor.write_block(block, np.zeros(executor.block_bytes, dtype=np.uint8))


@pytest.mark.parametrize("difference", [-1, 1])
def test_copies_of_another_size_are_refused(difference):
    executor = native_executor(tiny_model("llama"), kv_type="int8")
    content = np.zeros(executor.block_bytes + difference, dtype=np.uint8)
    with pytest.raises(NativeError, match="bytes of a KV block"):
        executor.write_block(0, content)
