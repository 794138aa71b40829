"""Laws that every architecture keeps, on tiny random models and the NumPy executor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from ellm.formats.quantization import FORMATS
from ellm.models import ARCHITECTURES, build_program
from ellm.program.executor import SequenceRows
from ellm.program.numpy_executor import NumpyExecutor
from ellm.program.ops import Attention
from tests.support.tiny_models import TinyModel, tiny_model

ALL = pytest.mark.parametrize("architecture", ARCHITECTURES)

# Logits are of order 1; float32 sums of up to 512 terms in another order differ by about
# sqrt(512) * 2^-24 per layer.
TOLERANCE = 1e-4

Logits = NDArray[np.float32]


def random_tokens(count: int, seed: int = 1) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 131, count, dtype=np.int32)


def all_rows(count: int) -> NDArray[np.int32]:
    return np.arange(count, dtype=np.int32)


def block_ids(*ids: int) -> NDArray[np.int32]:
    return np.array(ids, np.int32)


def run(
    executor: NumpyExecutor,
    tokens: NDArray[np.int32],
    blocks: NDArray[np.int32],
    chunks: Sequence[int],
) -> Logits:
    """Feed `tokens` in chunks of these sizes and return the logits of every row."""
    logits, start = [], 0
    for count in chunks:
        rows = [SequenceRows(blocks, start, count)]
        logits.append(executor.step(tokens[start : start + count], rows, all_rows(count)))
        start += count
    assert start == tokens.size
    return np.concatenate(logits)


def executor_of(model: TinyModel, num_blocks: int = 4) -> NumpyExecutor:
    return NumpyExecutor(model.program, model.weights, num_blocks)


def assert_close(found: Logits, expected: Logits) -> None:
    assert expected.std() > 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@ALL
def test_prefill_equals_token_by_token(architecture: str) -> None:
    model = tiny_model(architecture)
    tokens = random_tokens(150)
    blocks = block_ids(2, 0, 3)
    whole = run(executor_of(model), tokens, blocks, [150])
    single = run(executor_of(model), tokens, blocks, [1] * 150)
    chunked = run(executor_of(model), tokens, blocks, [7, 64, 1, 63, 15])
    assert_close(single, whole)
    assert_close(chunked, whole)


@ALL
def test_sequences_beside_each_other_do_not_touch(architecture: str) -> None:
    model = tiny_model(architecture)
    first, second, third = random_tokens(70, 1), random_tokens(5, 2), random_tokens(90, 3)
    alone = [
        run(executor_of(model), tokens, block_ids(0, 1), [tokens.size])
        for tokens in (first, second, third)
    ]
    executor = executor_of(model, 5)
    # The third is already under way: its last 10 rows share a step with the other two.
    third_blocks = block_ids(3, 1)
    run(executor, third[:80], third_blocks, [80])
    rows = [
        SequenceRows(block_ids(4, 0), 0, 70),
        SequenceRows(third_blocks, 80, 10),
        SequenceRows(block_ids(2), 0, 5),
    ]
    tokens = np.concatenate((first, third[80:], second))
    together = executor.step(tokens, rows, all_rows(85))
    assert_close(together[:70], alone[0])
    assert_close(together[70:80], alone[2][80:])
    assert_close(together[80:], alone[1])


@ALL
def test_running_again_from_an_earlier_position_forgets_what_came_after(architecture: str) -> None:
    model = tiny_model(architecture)
    tokens, other = random_tokens(100, 1), random_tokens(100, 2)
    blocks = block_ids(0, 1)
    executor = executor_of(model)
    run(executor, np.concatenate((tokens[:60], other[60:])), blocks, [100])
    again = executor.step(tokens[60:], [SequenceRows(blocks, 60, 40)], all_rows(40))
    assert_close(again, run(executor_of(model), tokens, blocks, [100])[60:])


@ALL
def test_logits_come_for_the_rows_asked_for_in_their_order(architecture: str) -> None:
    model = tiny_model(architecture)
    tokens = random_tokens(20)
    rows = [SequenceRows(block_ids(1), 0, 20)]
    every = executor_of(model).step(tokens, rows, all_rows(20))
    some = executor_of(model).step(tokens, rows, block_ids(19, 3, 3))
    none = executor_of(model).step(tokens, rows, block_ids())
    assert_close(some, every[[19, 3, 3]])
    assert none.shape == (0, model.config.vocab_size)


@ALL
def test_later_tokens_never_change_earlier_rows(architecture: str) -> None:
    model = tiny_model(architecture)
    tokens = random_tokens(90)
    changed = tokens.copy()
    changed[70] = (changed[70] + 1) % 131
    before = run(executor_of(model), tokens, block_ids(0, 1), [90])
    after = run(executor_of(model), changed, block_ids(0, 1), [90])
    assert_close(after[:70], before[:70])
    assert np.abs(after[70:] - before[70:]).max(axis=1).min() > 100 * TOLERANCE


@ALL
def test_tied_output_equals_a_copy_of_the_embedding(architecture: str) -> None:
    tied = tiny_model(architecture, tied=True)
    tensors = tied.tensors | {"output.weight": tied.tensors["token_embd.weight"]}
    copied = TinyModel(tied.config, build_program(tied.config, tensors), tensors)
    tokens = random_tokens(10)
    expected = run(executor_of(copied), tokens, block_ids(0), [10])
    assert_close(run(executor_of(tied), tokens, block_ids(0), [10]), expected)


@ALL
@pytest.mark.parametrize("formats", [(name,) for name in FORMATS] + [tuple(FORMATS)], ids="+".join)
def test_any_weight_format_runs(architecture: str, formats: tuple[str, ...]) -> None:
    model = tiny_model(architecture, formats)
    logits = run(executor_of(model), random_tokens(12), block_ids(0), [12])
    assert np.isfinite(logits).all()
    assert 0.3 < logits.std() < 3


def test_gemma3_sliding_layers_see_exactly_the_window() -> None:
    window = 37
    # One layer: with more of them, what a row sees reaches back a window per layer.
    model = tiny_model("gemma3", num_layers=1, sliding_window=window)
    tokens = random_tokens(140)
    rows = run(executor_of(model), tokens, block_ids(0, 1, 2), [140])
    for changed_at, seen in ((139 - window, False), (139 - window + 1, True)):
        changed = tokens.copy()
        changed[changed_at] = (changed[changed_at] + 1) % 131
        difference = np.abs(run(executor_of(model), changed, block_ids(0, 1, 2), [140]) - rows)
        assert bool(difference[139].max() > 10 * TOLERANCE) is seen


def test_gemma3_every_sixth_layer_sees_everything() -> None:
    program = tiny_model("gemma3").program
    windows = [op.window for op in program.ops if isinstance(op, Attention)]
    assert windows == [37, 37, 37, 37, 37, None, 37]
