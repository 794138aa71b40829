"""Logits of a part of the vocabulary: bit for bit those of the whole head, and none beside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ellm import native
from ellm.errors import ConfigError, RequestError
from ellm.models import ARCHITECTURES
from ellm.program.executor import GROUP_TOKENS, SequenceRows
from ellm.program.numpy_executor import NumpyExecutor
from tests.support.native_models import native_executor
from tests.support.tiny_models import tiny_model

ISAS = native.supported_isas()
FORMATS = [entry["name"] for entry in native.weight_formats()]
BLOCKS = np.arange(4, dtype=np.int32)
VOCAB_SIZE = 131  # its last group has three ids
NUM_GROUPS = 9


def ids(values):
    return np.array(values, dtype=np.int32)


def arguments(rows=40, wanted=(39,)):
    tokens = np.random.default_rng(1).integers(0, VOCAB_SIZE, rows, dtype=np.int32)
    return tokens, [SequenceRows(BLOCKS, 0, rows)], ids(wanted)


def check_trimmed(found, whole, groups):
    inside = np.isin(np.arange(VOCAB_SIZE) // GROUP_TOKENS, groups)
    np.testing.assert_array_equal(found[:, inside], whole[:, inside])
    assert (found[:, ~inside] == -np.inf).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weight_format", FORMATS)
def test_logits_are_those_of_the_whole_head(weight_format, isa):
    executor = native_executor(tiny_model("llama", (weight_format,)), isa=isa, threads=2)
    # One row, as many as kernels take at once, and as many as tiles are unpacked for.
    for wanted in ([39], [0, 7, 39], list(range(40))):
        step = arguments(wanted=wanted)
        whole = executor.step(*step)
        for groups in (ids([0, 1, 2]), ids([1, 4, 8]), ids([5]), ids(range(NUM_GROUPS))):
            check_trimmed(executor.step_trimmed(*step, groups), whole, groups)


@settings(deadline=None, max_examples=60)
@given(groups=st.sets(st.integers(0, NUM_GROUPS - 1)), threads=st.integers(1, 4))
def test_any_groups_on_any_threads(groups, threads):
    executor = native_executor(tiny_model("qwen2", ("q4_k",)), threads=threads)
    step = arguments(wanted=[3, 39])
    chosen = ids(sorted(groups))
    check_trimmed(executor.step_trimmed(*step, chosen), executor.step(*step), chosen)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_numpy_twin_does_the_same(architecture):
    model = tiny_model(architecture)
    step, groups = arguments(wanted=[0, 39]), ids([0, 3, 8])
    twin = NumpyExecutor(model.program, model.weights, 4)
    expected = twin.step_trimmed(*step, groups)
    check_trimmed(expected, twin.step(*step), groups)
    found = native_executor(model).step_trimmed(*step, groups)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_a_later_step_has_the_whole_head_again():
    executor = native_executor(tiny_model("llama"))
    step = arguments()
    before = executor.step(*step)
    executor.step_trimmed(*step, ids([2]))
    np.testing.assert_array_equal(executor.step(*step), before)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (ids([-1]), "vocabulary group -1; expected 0 to 8"),
        (ids([0, 9]), "vocabulary group 9; expected 0 to 8"),
        (ids([3, 2]), "vocabulary group 2; expected it above the one before it"),
        (ids([3, 3]), "vocabulary group 3; expected it above the one before it"),
        (ids([[1]]), "vocabulary groups of shape"),
    ],
)
def test_groups_out_of_order_or_range_are_refused(groups, message):
    model = tiny_model("llama")
    for executor in (native_executor(model), NumpyExecutor(model.program, model.weights, 4)):
        with pytest.raises(RequestError, match=message):
            executor.step_trimmed(*arguments(), groups)


@pytest.mark.parametrize("tiles", [[-1], [9], [2, 2]])
def test_the_core_checks_them_too(tiles):
    executor = native_executor(tiny_model("llama"))
    tokens, rows, wanted = arguments()
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    with pytest.raises(ConfigError, match="tile of the head"):
        executor._native.step(
            tokens, [(BLOCKS, 0, rows[0].count, None)], wanted, logits, head_tiles=ids(tiles)
        )
    assert not logits.any()
