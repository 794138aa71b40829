"""Exits after some layers: what they compute, and that later steps never know they were taken."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ellm import native
from ellm.config.engine import KV_TYPES
from ellm.errors import AbortedError, ConfigError, RequestError
from ellm.models import ARCHITECTURES
from ellm.program import numpy_math
from ellm.program.executor import NUM_COUNTS, ChoiceRule, Estimate, RowChoices, SequenceRows
from ellm.program.exits import ExitExecutor
from ellm.program.memory import memory_plan
from ellm.program.native_executor import NativeExecutor
from ellm.program.numpy_executor import NumpyExecutor
from tests.support.native_models import TinySource, native_executor, run_chunks
from tests.support.tiny_models import TinyModel, tiny_model

ISAS = native.supported_isas()
MIXED = ("q4_k", "q6_k", "f16", "q5_0", "q8_0", "q5_k", "q4_1", "f32", "q4_0", "q5_1", "bf16")
BLOCKS = np.arange(32, dtype=np.int32)

Floats = NDArray[np.float32]


def random_tokens(count: int, seed: int = 1) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 131, count, dtype=np.int32)


def random_map(model: TinyModel, seed: int = 3) -> tuple[Floats, Floats]:
    """Return a weight (E, E) and a bias (E,) that keep the size of a row."""
    size = model.program.hidden_size
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((size, size), np.float32) / np.float32(np.sqrt(size))
    return weight, rng.standard_normal(size, np.float32)


def with_exits(model: TinyModel, executor: Any) -> Any:
    for layer in range(1, model.program.num_layers + 1):
        executor.add_exit(layer, *random_map(model, layer))
    return executor


def exit_chunks(
    executor: ExitExecutor, layer: int, tokens: NDArray[np.int32], chunks: Sequence[int]
) -> Floats:
    """Feed tokens through an exit in chunks of these sizes, the last repeated."""
    logits, start, turn = [], 0, 0
    while start < tokens.size:
        count = min(chunks[min(turn, len(chunks) - 1)], tokens.size - start)
        rows = [SequenceRows(BLOCKS, start, count)]
        wanted = np.arange(count, dtype=np.int32)
        logits.append(executor.step_exit(layer, tokens[start : start + count], rows, wanted))
        start += count
        turn += 1
    return np.concatenate(logits)


def test_both_executors_have_exits() -> None:
    model = tiny_model("llama")
    for executor in (native_executor(model), NumpyExecutor(model.program, model.weights, 4)):
        assert isinstance(executor, ExitExecutor)
        assert (executor.num_layers, executor.hidden_size) == (3, 44)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_exits_match_numpy_at_every_layer(architecture: str, isa: str) -> None:
    model = tiny_model(architecture)
    tokens = random_tokens(150)
    found = with_exits(model, native_executor(model, isa=isa))
    twin = with_exits(model, NumpyExecutor(model.program, model.weights, 32))
    for layer in range(1, model.program.num_layers + 1):
        expected = exit_chunks(twin, layer, tokens, [150])
        assert expected.std() > 0.1
        logits = exit_chunks(found, layer, tokens, [150])
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_hidden_rows_match_numpy_at_every_boundary(architecture: str, isa: str) -> None:
    model = tiny_model(architecture)
    tokens = random_tokens(150)
    rows = [SequenceRows(BLOCKS, 0, 150)]
    layers = [model.program.num_layers, *range(model.program.num_layers)]
    expected = NumpyExecutor(model.program, model.weights, 32).step_hidden(tokens, rows, layers)
    found = native_executor(model, isa=isa).step_hidden(tokens, rows, layers)
    assert found.shape == (len(layers), 150, model.program.hidden_size)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert len({rows.tobytes() for rows in found}) == len(layers)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_last_hidden_rows_are_what_the_head_reads(architecture: str) -> None:
    model = tiny_model(architecture)
    tokens, head = random_tokens(70), model.program.head
    hidden = native_executor(model).step_hidden(
        tokens, [SequenceRows(BLOCKS, 0, 70)], [model.program.num_layers]
    )
    normed = numpy_math.rms_norm(hidden[0], model.weights(head.norm_weight), head.epsilon)
    logits = numpy_math.linear(normed, model.weights(head.weight), None)
    expected = run_chunks(native_executor(model), tokens, [70])
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_exit_after_the_last_layer_that_maps_nothing_is_an_ordinary_step(
    architecture: str, kv_type: str
) -> None:
    model = tiny_model(architecture, MIXED)
    size = model.program.hidden_size
    executor = native_executor(model, kv_type=kv_type)
    executor.add_exit(model.program.num_layers, np.eye(size, dtype=np.float32), np.zeros(size, "f"))
    tokens = random_tokens(200)
    found = exit_chunks(executor, model.program.num_layers, tokens, [100])
    expected = run_chunks(native_executor(model, kv_type=kv_type), tokens, [200])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunks_threads_and_isa_change_no_bit(architecture: str, kv_type: str) -> None:
    model = tiny_model(architecture, MIXED)
    tokens, layer = random_tokens(150), 2
    rows, layers = [SequenceRows(BLOCKS, 0, 150)], [0, layer, model.program.num_layers]
    scalar = with_exits(model, native_executor(model, isa="scalar", kv_type=kv_type))
    whole = exit_chunks(scalar, layer, tokens, [150])
    hidden = scalar.step_hidden(tokens, rows, layers)
    for isa in ISAS:
        for chunks, threads in (([64], 2), ([140, 1], 2), ([7], 1)):
            executor = native_executor(model, isa=isa, kv_type=kv_type, threads=threads)
            with_exits(model, executor)
            np.testing.assert_array_equal(exit_chunks(executor, layer, tokens, chunks), whole)
        np.testing.assert_array_equal(executor.step_hidden(tokens, rows, layers), hidden)


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_other_sequences_change_no_bit_of_an_exit(architecture: str, kv_type: str) -> None:
    model = tiny_model(architecture, MIXED)
    first, second = random_tokens(70, 1), random_tokens(90, 2)
    executor = with_exits(model, native_executor(model, kv_type=kv_type))
    alone = [exit_chunks(executor, 1, tokens, [tokens.size]) for tokens in (first, second)]
    rows = [SequenceRows(BLOCKS[9:11], 0, 70), SequenceRows(BLOCKS[3:5], 0, 90)]
    wanted = np.array([159, 0, 69, 70], dtype=np.int32)
    together = executor.step_exit(1, np.concatenate([first, second]), rows, wanted)
    expected = [alone[1][89], alone[0][0], alone[0][69], alone[1][0]]
    np.testing.assert_array_equal(together, np.stack(expected))


def stored(executor: NativeExecutor, count: int) -> Floats:
    return np.stack([executor.read_block(block) for block in range(count)])


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_drafting_leaves_no_trace_in_what_full_steps_write_after_it(
    architecture: str, kv_type: str
) -> None:
    model = tiny_model(architecture, MIXED)
    tokens, drafts = random_tokens(256, 1), random_tokens(256, 2)
    plain = native_executor(model, kv_type=kv_type)
    expected = run_chunks(plain, tokens, [256])
    executor = with_exits(model, native_executor(model, kv_type=kv_type, threads=2))
    start, found, turn = 0, [], 0
    while start < 256:
        # Chains of up to 9 drafts, right or wrong, over block borders; then rows that verify some.
        layer = 1 + turn % model.program.num_layers
        guesses = (tokens, drafts)[turn % 2]
        for position in range(start, min(start + 1 + turn % 9, 256)):
            rows = [SequenceRows(BLOCKS, position, 1)]
            wanted = np.zeros(turn % 2, dtype=np.int32)
            executor.step_exit(layer, guesses[position : position + 1], rows, wanted)
        count = min(1 + turn % 11, 256 - start)
        rows = [SequenceRows(BLOCKS, start, count)]
        wanted = np.arange(count, dtype=np.int32)
        found.append(executor.step(tokens[start : start + count], rows, wanted))
        start += count
        turn += 1
    np.testing.assert_array_equal(np.concatenate(found), expected)
    np.testing.assert_array_equal(stored(executor, 4), stored(plain, 4))


@pytest.mark.parametrize("estimate", Estimate)
def test_rows_of_exits_choose_what_they_read_and_leave_no_trace_either(estimate: Estimate) -> None:
    model = tiny_model("llama", sharpness=8.0)
    tokens, rule = random_tokens(1410), ChoiceRule(estimate, mass=0.7)

    def rows_at(position: int) -> list[SequenceRows]:
        choices = RowChoices(rule, np.zeros((1, NUM_COUNTS)))
        return [SequenceRows(BLOCKS, position, 1, choices)]

    one = np.zeros(1, dtype=np.int32)
    plain, executor = (native_executor(model, kv_type="int8") for _ in range(2))
    with_exits(model, executor)
    for each in (plain, executor):
        run_chunks(each, tokens[:1400], [512])
    for position in range(1400, 1410):
        for ahead in range(3):
            drafted = rows_at(position + ahead)
            executor.step_exit(1, tokens[:1], drafted, one)
            counts = drafted[0].choices.counts[0]
            # One layer of two KV heads.
            assert counts[0] == 2 * ((position + ahead) // 64)
            assert 0 < counts[1] < counts[0]
        found, expected = rows_at(position), rows_at(position)
        token = tokens[position : position + 1]
        np.testing.assert_array_equal(
            executor.step(token, found, one), plain.step(token, expected, one)
        )
        np.testing.assert_array_equal(found[0].choices.counts, expected[0].choices.counts)


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_an_exit_writes_the_layers_below_it_and_no_others(kv_type: str) -> None:
    model = tiny_model("llama")
    executor = with_exits(model, native_executor(model, kv_type=kv_type))
    run_chunks(executor, random_tokens(64, 1), [64])
    before = executor.read_block(0).reshape(3, -1)
    exit_chunks(executor, 2, random_tokens(64, 2), [64])
    after = executor.read_block(0).reshape(3, -1)
    assert [(new != old).any() for new, old in zip(after, before, strict=True)] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_looking_at_hidden_rows_changes_nothing(kv_type: str) -> None:
    model = tiny_model("qwen2", MIXED)
    tokens = random_tokens(200)
    plain = native_executor(model, kv_type=kv_type)
    expected = run_chunks(plain, tokens, [130, 70])
    executor = native_executor(model, kv_type=kv_type)
    executor.step_hidden(tokens[:130], [SequenceRows(BLOCKS, 0, 130)], [1, 3])
    rows = [SequenceRows(BLOCKS, 130, 70)]
    found = executor.step(tokens[130:], rows, np.arange(70, dtype=np.int32))
    np.testing.assert_array_equal(found, expected[130:])
    np.testing.assert_array_equal(stored(executor, 3), stored(plain, 3))


def test_an_exit_takes_the_place_of_another_at_its_layer_and_of_no_other() -> None:
    model = tiny_model("llama", MIXED)
    tokens = random_tokens(20)
    executor = with_exits(model, native_executor(model))
    first, second = (exit_chunks(executor, layer, tokens, [20]) for layer in (1, 2))
    executor.add_exit(1, *random_map(model, 9))
    assert (exit_chunks(executor, 1, tokens, [20]) != first).any(axis=1).all()
    np.testing.assert_array_equal(exit_chunks(executor, 2, tokens, [20]), second)
    executor.add_exit(1, *random_map(model, 1))
    np.testing.assert_array_equal(exit_chunks(executor, 1, tokens, [20]), first)


def test_only_the_layers_below_an_exit_are_run() -> None:
    model = tiny_model("llama")
    executor = with_exits(model, native_executor(model))
    exit_chunks(executor, 2, random_tokens(30), [30])
    # Embedding, two layers, the map and the head.
    per_layer = (len(model.program.ops) - 2) // 3
    assert len(executor.op_seconds()) == 1 + 2 * per_layer + 2
    run_chunks(executor, random_tokens(30), [30])
    assert len(executor.op_seconds()) == len(model.program.ops)


@pytest.mark.parametrize("num_exits", [0, 1, 3])
def test_memory_of_exits_is_counted_exactly(num_exits: int) -> None:
    model = tiny_model("qwen2", MIXED)
    executor = native_executor(model, num_blocks=40, max_rows=100)
    arena_bytes = executor.arena_bytes
    for layer in range(1, num_exits + 1):
        # Twice: the second takes the place of the first.
        executor.add_exit(layer, *random_map(model))
        executor.add_exit(layer, *random_map(model))
    plan = memory_plan(
        TinySource(model),
        model.program,
        threads=1,
        num_blocks=40,
        max_rows=100,
        kv_type="f32",
        num_exits=num_exits,
    )
    assert plan.exits_bytes == executor.exits_bytes
    assert (plan.exits_bytes > 0) is (num_exits > 0)
    parts = plan.weights_bytes + plan.arena_bytes + plan.kv_bytes
    assert plan.total_bytes == parts + plan.exits_bytes
    assert executor.arena_bytes == arena_bytes


def test_abort_ends_an_exit_and_the_next_is_unchanged() -> None:
    model = tiny_model("llama", ("q8_0",), num_layers=40)
    tokens = random_tokens(512)
    executor = native_executor(model, isa="scalar")
    executor.add_exit(39, *random_map(model))
    expected = exit_chunks(executor, 39, tokens, [512])
    started = threading.Event()

    def stop() -> None:
        started.wait()
        time.sleep(0.05)
        executor.abort()

    thread = threading.Thread(target=stop)
    thread.start()

    def draft_again_and_again() -> None:
        started.set()
        for _ in range(100):
            exit_chunks(executor, 39, tokens, [512])

    with pytest.raises(AbortedError):
        draft_again_and_again()
    thread.join()
    np.testing.assert_array_equal(exit_chunks(executor, 39, tokens, [512]), expected)


@pytest.mark.parametrize("kind", ["native", "numpy"])
def test_what_fits_no_exit_is_refused(kind: str) -> None:
    model = tiny_model("llama")
    numpy_twin = NumpyExecutor(model.program, model.weights, 32)
    executor: Any = native_executor(model) if kind == "native" else numpy_twin
    weight, bias = random_map(model)
    for layer in (-1, 0, 4):
        with pytest.raises(RequestError, match="layer boundary"):
            executor.add_exit(layer, weight, bias)
    for wrong in ((weight[1:], bias), (weight, bias[1:]), (weight[None], bias)):
        with pytest.raises(RequestError, match="expected"):
            executor.add_exit(1, *wrong)
    for number in (np.nan, np.inf, 65505.0):
        with pytest.raises(RequestError, match="not finite or above 65504"):
            executor.add_exit(1, np.where(weight == weight[3, 4], np.float32(number), weight), bias)
    with pytest.raises(RequestError, match="not finite"):
        executor.add_exit(1, weight, bias * np.float32(np.nan))
    rows = [SequenceRows(BLOCKS, 0, 1)]
    with pytest.raises(RequestError, match="no exit at layer 1"):
        executor.step_exit(1, random_tokens(1), rows, np.zeros(1, dtype=np.int32))
    for layer in (-1, 4):
        with pytest.raises(RequestError, match="layer boundary"):
            executor.step_hidden(random_tokens(1), rows, [layer])
    executor.add_exit(1, weight, bias)
    with pytest.raises(RequestError, match="token id"):
        executor.step_exit(1, np.array([131], dtype=np.int32), rows, np.zeros(1, dtype=np.int32))


def test_numbers_out_of_range_are_refused_by_the_core_too() -> None:
    model = tiny_model("llama")
    executor = with_exits(model, native_executor(model))
    rows = [(BLOCKS, 0, 1, None)]
    none, hidden = np.empty((0, 131), np.float32), np.empty((1, 44), np.float32)
    wanted = np.empty(0, dtype=np.int32)

    def step(exit_at: int | None, taps: list[tuple[int, int, Floats]]) -> None:
        executor._native.step(random_tokens(1), rows, wanted, none, exit_at, taps)

    with pytest.raises(ConfigError, match="op to leave at"):
        step(2, [])
    num_ops = len(model.program.ops)
    with pytest.raises(ConfigError, match="op to look before"):
        step(None, [(num_ops, 0, hidden)])
    with pytest.raises(Exception, match="width of a tap"):
        step(None, [(0, 0, hidden[:, 1:].copy())])
    with pytest.raises(Exception, match="rows of a tap"):
        step(None, [(0, 0, np.empty((2, 44), np.float32))])
