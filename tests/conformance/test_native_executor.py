"""The native executor computes what the NumPy executor does, and keeps law 1 to the bit."""

from __future__ import annotations

import dataclasses
import threading
import time

import numpy as np
import pytest

from ellm import native
from ellm.config.engine import KV_TYPES
from ellm.errors import AbortedError, CapacityError, ConfigError, RequestError
from ellm.formats.quantization import FORMATS
from ellm.models import ARCHITECTURES
from ellm.program.executor import SequenceRows
from ellm.program.memory import arena_bytes, memory_plan
from ellm.program.numpy_executor import NumpyExecutor
from tests.support.native_models import (
    INTEGER_FORMATS,
    QuantizingExecutor,
    TinySource,
    native_executor,
    run_chunks,
)
from tests.support.tiny_models import tiny_model

ISAS = native.supported_isas()
FLOAT_FORMATS = [name for name in FORMATS if name not in INTEGER_FORMATS]
MIXED = ("q4_k", "q6_k", "f16", "q5_0", "q8_0", "q5_k", "q4_1", "f32", "q4_0", "q5_1", "bf16")


def random_tokens(count, seed=1):
    return np.random.default_rng(seed).integers(0, 131, count, dtype=np.int32)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("formats", [(name,) for name in FLOAT_FORMATS])
def test_float_models_match_numpy(architecture, formats, isa):
    model = tiny_model(architecture, formats)
    tokens = random_tokens(150)
    expected = run_chunks(NumpyExecutor(model.program, model.weights, 32), tokens, [150])
    found = run_chunks(native_executor(model, isa=isa), tokens, [150])
    assert expected.std() > 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("formats", [(name,) for name in INTEGER_FORMATS] + [MIXED])
def test_integer_models_match_numpy_with_rounded_activations(architecture, formats):
    # One layer and single tokens: few activations, so that few lie next to a rounding border.
    model = tiny_model(architecture, formats, num_layers=1)
    exact = NumpyExecutor(model.program, model.weights, 32)
    rounded, found = QuantizingExecutor(model), native_executor(model)
    rows = [SequenceRows(np.array([i], dtype=np.int32), 0, 1) for i in range(32)]
    step = (random_tokens(32), rows, np.arange(32, dtype=np.int32))
    exact, rounded, found = (executor.step(*step) for executor in (exact, rounded, found))
    # Sums in another order carry an activation over a border now and then, which moves that row's
    # logits; where none is carried over, only float rounding is left.
    errors = np.abs(found - rounded).max(axis=1)
    assert np.mean(errors < 1e-4) >= 0.2
    assert np.abs(found - rounded).mean() < 0.2 * np.abs(exact - rounded).mean()


@pytest.mark.parametrize("kv_type", ["f16", "int8"])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_smaller_kv_is_close_to_float_kv(architecture, isa, kv_type):
    model = tiny_model(architecture)
    tokens = random_tokens(200)
    f32 = run_chunks(native_executor(model, isa=isa), tokens, [200])
    small = run_chunks(native_executor(model, isa=isa, kv_type=kv_type), tokens, [200])
    # int8 sees the first block in float: nothing is rounded there.
    exact = 64 if kv_type == "int8" else 0
    np.testing.assert_array_equal(small[:exact], f32[:exact])
    errors = np.abs(small[exact:] - f32[exact:])
    assert errors.max() > 0
    assert errors.mean() < (0.001 if kv_type == "f16" else 0.01) * f32.std()


def test_keys_with_a_common_offset_survive_int8():
    # As in Qwen2.5: a key bias hundreds of times larger than what tells keys apart. Without
    # centring, one step of the scale would be larger than the differences.
    model = tiny_model("qwen2")
    for layer in range(model.config.num_layers):
        bias = model.tensors[f"blk.{layer}.attn_k.bias"].data.view(np.float32)
        bias[::5] = 300.0
    # Without rotation, the bias is the same for every token.
    program = dataclasses.replace(
        model.program,
        rope_tables=tuple(
            dataclasses.replace(t, inverse_frequencies=(0.0,) * len(t.inverse_frequencies))
            for t in model.program.rope_tables
        ),
    )
    model = dataclasses.replace(model, program=program, _decoded={})
    tokens = random_tokens(200)
    f32 = run_chunks(native_executor(model), tokens, [200])
    int8 = run_chunks(native_executor(model, kv_type="int8"), tokens, [200])
    assert np.abs(int8 - f32).mean() < 0.02 * f32.std()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_int8_blocks_can_be_entered_again_while_their_float_form_is_there(architecture):
    model = tiny_model(architecture, MIXED)
    tokens, other = random_tokens(200, 1), random_tokens(140, 2)
    expected = run_chunks(native_executor(model, kv_type="int8"), tokens, [200])
    executor = native_executor(model, kv_type="int8")
    blocks = np.arange(32, dtype=np.int32)

    def go_on_from(start):
        rows = [SequenceRows(blocks, start, 200 - start)]
        wanted = np.arange(200 - start, dtype=np.int32)
        return executor.step(tokens[start:], rows, wanted)

    # A rejected chain of 60 tokens over the border of the second and third block.
    run_chunks(executor, np.concatenate([tokens[:120], other[:60]]), [120, 60], blocks)
    np.testing.assert_array_equal(go_on_from(120), expected[120:])
    # Far ahead: the float form of block 1 is gone, its stored form and that of block 0 are not.
    run_chunks(executor, np.concatenate([tokens, other]), [200, 20, 60, 60], blocks)
    with pytest.raises(ConfigError, match="float form is gone"):
        go_on_from(120)
    np.testing.assert_array_equal(go_on_from(64), expected[64:])


def test_ended_sequences_leave_no_float_form():
    executor = native_executor(tiny_model("llama"), kv_type="int8")
    tokens = random_tokens(100)
    blocks = np.array([3, 5], dtype=np.int32)
    run_chunks(executor, tokens, [100], blocks)
    executor.forget(blocks)
    rows = [SequenceRows(blocks, 90, 10)]
    with pytest.raises(ConfigError, match="float form is gone"):
        executor.step(tokens[90:], rows, np.array([0], dtype=np.int32))


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunks_and_threads_change_no_bit(architecture, isa, kv_type):
    # 1,300 tokens: three segments of 512, and steps of one row that split them over threads.
    model = tiny_model(architecture, MIXED, num_layers=2)
    tokens = random_tokens(1300 if isa != "scalar" else 600)
    whole = run_chunks(native_executor(model, isa=isa, kv_type=kv_type), tokens, [512])
    for chunks, threads in (([64], 2), ([7], 2), ([500, 1], 2), ([500, 1], 1)):
        executor = native_executor(model, isa=isa, kv_type=kv_type, threads=threads)
        np.testing.assert_array_equal(run_chunks(executor, tokens, chunks), whole)


@pytest.mark.parametrize("isa", ISAS[1:])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_isa_gives_the_scalar_bits(architecture, isa):
    model = tiny_model(architecture, MIXED)
    tokens = random_tokens(600)
    scalar = run_chunks(native_executor(model, isa="scalar"), tokens, [512])
    np.testing.assert_array_equal(
        run_chunks(native_executor(model, isa=isa), tokens, [512]), scalar
    )


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_other_sequences_change_no_bit(architecture, kv_type):
    model = tiny_model(architecture, MIXED)
    prompts = [random_tokens(n, seed=n) for n in (700, 5, 64, 130)]
    alone = [
        run_chunks(native_executor(model, kv_type=kv_type), prompt, [512])[-1] for prompt in prompts
    ]
    executor = native_executor(model, threads=2, kv_type=kv_type)
    blocks = np.random.default_rng(0).permutation(32).astype(np.int32)
    tables = [blocks[:11], blocks[11:12], blocks[12:13], blocks[13:16]]
    run_chunks(executor, prompts[0][:690], [300], tables[0])
    rows, parts, last = [], [], []
    for prompt, table in zip(prompts, tables, strict=True):
        start = 690 if len(prompt) == 700 else 0
        rows.append(SequenceRows(table, start, len(prompt) - start))
        parts.append(prompt[start:])
        last.append(sum(map(len, parts)) - 1)
    together = executor.step(np.concatenate(parts), rows, np.array(last, dtype=np.int32))
    np.testing.assert_array_equal(together, np.stack(alone))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_running_again_from_an_earlier_position_leaves_no_trace(architecture):
    model = tiny_model(architecture, MIXED)
    tokens, other = random_tokens(200, 1), random_tokens(90, 2)
    expected = run_chunks(native_executor(model), tokens, [200])
    executor = native_executor(model)
    blocks = np.arange(32, dtype=np.int32)
    run_chunks(executor, np.concatenate([tokens[:120], other]), [64], blocks)
    rows = [SequenceRows(blocks, 120, 80)]
    found = executor.step(tokens[120:], rows, np.arange(80, dtype=np.int32))
    np.testing.assert_array_equal(found, expected[120:])


def test_abort_ends_the_step_and_the_next_is_unchanged():
    model = tiny_model("llama", ("q8_0",), num_layers=40)
    tokens = random_tokens(512)
    executor = native_executor(model, isa="scalar")
    rows = [SequenceRows(np.arange(32, dtype=np.int32), 0, 512)]
    wanted = np.array([511], dtype=np.int32)
    expected = executor.step(tokens, rows, wanted)
    started = threading.Event()

    def stop():
        started.wait()
        time.sleep(0.05)
        executor.abort()

    def step_again_and_again():
        started.set()
        for _ in range(100):
            executor.step(tokens, rows, wanted)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(AbortedError):
        step_again_and_again()
    thread.join()
    np.testing.assert_array_equal(executor.step(tokens, rows, wanted), expected)


@pytest.mark.parametrize(
    ("tokens", "start", "count", "blocks", "logits"),
    [
        ([131], 0, 1, [0], [0]),
        ([-1], 0, 1, [0], [0]),
        ([], 0, 1, [0], [0]),
        ([1], -1, 1, [0], [0]),
        ([1], 0, 2, [0], [0]),
        ([1], 64, 1, [0], [0]),
        ([1], 0, 1, [32], [0]),
        ([1], 0, 1, [-1], [0]),
        ([1], 0, 1, [], [0]),
        ([1], 0, 1, [0], [1]),
        ([1], 0, 1, [0], [-1]),
    ],
)
def test_numbers_out_of_range_are_refused_twice(tokens, start, count, blocks, logits):
    executor = native_executor(tiny_model("llama"))
    ids = np.array(tokens, dtype=np.int32)
    table = np.array(blocks, dtype=np.int32)
    wanted = np.array(logits, dtype=np.int32)
    with pytest.raises(RequestError):
        executor.step(ids, [SequenceRows(table, start, count)], wanted)
    # The native core checks again: a bug above it must not become a wild write.
    out = np.empty((len(logits), 131), dtype=np.float32)
    with pytest.raises(Exception, match=r"found|refused"):
        executor._native.step(ids, [(table, start, count, None)], wanted, out)


def test_too_many_rows_are_refused():
    executor = native_executor(tiny_model("llama"), max_rows=8)
    rows = [SequenceRows(np.arange(2, dtype=np.int32), 0, 9)]
    with pytest.raises(CapacityError):
        executor.step(random_tokens(9), rows, np.array([8], dtype=np.int32))


def test_unknown_isa_is_refused_with_the_supported_ones():
    with pytest.raises(ConfigError, match="scalar"):
        native_executor(tiny_model("llama"), isa="avx1024")


@pytest.mark.parametrize("formats", [("f32",), MIXED])
@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_memory_is_counted_exactly(architecture, formats, kv_type):
    model = tiny_model(architecture, formats)
    source = TinySource(model)
    executor = native_executor(model, threads=3, num_blocks=40, max_rows=100, kv_type=kv_type)
    plan = memory_plan(
        source, model.program, threads=3, num_blocks=40, max_rows=100, kv_type=kv_type
    )
    if kv_type == "int8":
        assert plan.kv_bytes > executor.kv_bytes
    else:
        assert plan.kv_bytes == executor.kv_bytes
    assert plan.weights_bytes == executor.weights_bytes
    assert arena_bytes(source, model.program, 3, 40 * 64, 100, kv_type) == executor.arena_bytes
    assert plan.arena_bytes > executor.arena_bytes


def test_every_op_of_a_step_is_timed():
    model = tiny_model("llama")
    executor = native_executor(model)
    started = time.perf_counter()
    run_chunks(executor, random_tokens(100), [100])
    elapsed = time.perf_counter() - started
    seconds = executor.op_seconds()
    assert len(seconds) == len(model.program.ops)
    assert min(seconds) >= 0
    assert 0 < sum(seconds) < elapsed
