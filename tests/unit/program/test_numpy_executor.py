"""The NumPy executor keeps the protocol: arguments are checked, a step can be aborted."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ellm.errors import AbortedError, CapacityError, RequestError
from ellm.program.executor import Executor, SequenceRows
from ellm.program.numpy_executor import NumpyExecutor
from tests.support.tiny_models import TinyModel, tiny_model


@pytest.fixture(scope="module")
def model() -> TinyModel:
    return tiny_model("llama")


@pytest.fixture
def executor(model: TinyModel) -> NumpyExecutor:
    return NumpyExecutor(model.program, model.weights, 3, max_rows=100)


def ids(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def test_limits_are_those_it_was_made_with(executor: Executor) -> None:
    assert (executor.max_rows, executor.num_blocks, executor.vocab_size) == (100, 3, 131)


@pytest.mark.parametrize(
    ("tokens", "rows", "logits_rows", "message"),
    [
        (ids(), [], ids(), "0 tokens"),
        (ids(1, 2), [SequenceRows(ids(0), 0, 1)], ids(), "2 tokens for 1 rows"),
        (ids(1, 131), [SequenceRows(ids(0), 0, 2)], ids(), "token id 131"),
        (ids(1, -1), [SequenceRows(ids(0), 0, 2)], ids(), "token id -1"),
        (ids(1), [SequenceRows(ids(0), 0, 1)], ids(1), "logits row 1"),
        (ids(1), [SequenceRows(ids(0), 0, 1)], ids(-1), "logits row -1"),
        (ids(1), [SequenceRows(ids(0), -1, 1)], ids(), "from -1"),
        (ids(1), [SequenceRows(ids(0), 0, 1), SequenceRows(ids(1), 5, 0)], ids(), "0 of them"),
        (ids(1), [SequenceRows(ids(0), 64, 1)], ids(), "1 KV blocks for 65 tokens"),
        (ids(1), [SequenceRows(ids(3), 0, 1)], ids(), "KV block id 3"),
        (ids(1), [SequenceRows(ids(-1), 0, 1)], ids(), "KV block id -1"),
        (ids(1).reshape(1, 1), [SequenceRows(ids(0), 0, 1)], ids(), "shape"),
    ],
)
def test_step_that_does_not_fit_is_refused(
    executor: NumpyExecutor,
    tokens: NDArray[np.int32],
    rows: list[SequenceRows],
    logits_rows: NDArray[np.int32],
    message: str,
) -> None:
    with pytest.raises(RequestError, match=message):
        executor.step(tokens, rows, logits_rows)


def test_more_rows_than_the_executor_takes_are_refused(executor: NumpyExecutor) -> None:
    with pytest.raises(CapacityError) as caught:
        executor.step(np.zeros(101, np.int32), [SequenceRows(ids(0, 1), 0, 101)], ids())
    assert (caught.value.needed, caught.value.available) == (101, 100)


def test_aborted_step_ends_between_ops_and_the_next_one_is_unchanged(model: TinyModel) -> None:
    asked: list[str] = []

    def weights(name: str) -> NDArray[np.float32]:
        asked.append(name)
        if name == abort_at:
            executor.abort()
        return model.weights(name)

    executor = NumpyExecutor(model.program, weights, 1)
    rows = [SequenceRows(ids(0), 0, 4)]
    abort_at = ""
    expected = executor.step(ids(5, 6, 7, 8), rows, ids(3))
    abort_at = "blk.1.ffn_down.weight"
    asked.clear()
    with pytest.raises(AbortedError):
        executor.step(ids(5, 6, 7, 8), rows, ids(3))
    assert asked[-1] == abort_at
    abort_at = ""
    assert np.array_equal(executor.step(ids(5, 6, 7, 8), rows, ids(3)), expected)


def test_abort_without_a_running_step_does_nothing(executor: NumpyExecutor) -> None:
    executor.abort()
    assert executor.step(ids(1), [SequenceRows(ids(0), 0, 1)], ids(0)).shape == (1, 131)
