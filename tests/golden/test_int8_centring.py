"""Why int8 keys are residuals of their block's mean, with a scale per element.

Qwen2.5's key biases are so large that a scale for whole keys leaves no resolution for what tells
tokens apart. In the first layer, rounding keys as they are makes attention's error 78 times (1.5B)
and 82 times (0.5B) that of what is stored; without the mean alone it is 16 and 13 times, without
the scales alone 1.3 and 23 times: the largest biases of the 0.5B lie where RoPE turns them within a
block.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ellm.formats.gguf import GgufFile
from ellm.formats.gguf.model_config import read_model_config
from ellm.formats.quantization import decode
from ellm.models import ARCHITECTURES, build_program
from ellm.program import numpy_math
from ellm.program.executor import BLOCK_TOKENS, SequenceRows
from ellm.program.numpy_executor import NumpyExecutor
from ellm.program.ops import Attention
from tests.support.real_models import model_path, reference

BLOCKS = 4
# At least so many times the error of what is stored: keys as they are, without the mean, without
# the scales of elements.
TIMES_WORSE = {"qwen2.5-coder-0.5b": (50, 8, 10), "qwen2.5-coder-1.5b": (50, 8, 1)}
TOKENS, ELEMENTS = 1, -1  # axes of one scale


class _FirstAttention(Exception):  # noqa: N818
    def __init__(self, op: Attention, q, k, v) -> None:
        self.op, self.q, self.k, self.v = op, q, k, v


class _Capture(NumpyExecutor):
    def _attend_sequence(self, op, sequence, q):
        k, v = self._keys[op.layer], self._values[op.layer]
        raise _FirstAttention(op, q, k[sequence.blocks], v[sequence.blocks])


def first_attention(name: str) -> _FirstAttention:
    """Return queries (T, Hq, D) and keys and values (B, 64, Hkv, D) of the first layer."""
    source = GgufFile.open(model_path(name))
    program = build_program(
        read_model_config(source, ARCHITECTURES), source.tensors, path=str(source.path)
    )

    def weights(tensor: str) -> NDArray[np.float32]:
        entry = source.tensors[tensor]
        return decode(entry.type_name, source.read(tensor), entry.shape)

    count = BLOCKS * BLOCK_TOKENS
    tokens = np.array(reference(name)["text_ids"][:count], np.int32)
    executor = _Capture(program, weights, BLOCKS, max_rows=count)
    rows = [SequenceRows(np.arange(BLOCKS, dtype=np.int32), 0, count)]
    with pytest.raises(_FirstAttention) as caught:
        executor.step(tokens, rows, np.empty(0, dtype=np.int32))
    return caught.value


def rounded(x: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """Return x (B, 64, Hkv, D) as int8 codes with one scale along an axis."""
    scale = np.abs(x).max(axis=axis, keepdims=True) / 127
    return np.rint(np.divide(x, scale, out=np.zeros_like(x), where=scale > 0)) * scale


@pytest.mark.models
@pytest.mark.parametrize("name", TIMES_WORSE)
def test_without_mean_or_scales_of_elements_attention_is_far_worse(name: str) -> None:
    found = first_attention(name)
    mean = found.k.mean(axis=1, keepdims=True)
    last = found.q[-BLOCK_TOKENS:]
    kv_shape = (-1, *found.k.shape[2:])
    everything = np.ones((BLOCK_TOKENS, BLOCKS * BLOCK_TOKENS), dtype=bool)

    def attend(keys: NDArray[np.float32]) -> NDArray[np.float32]:
        values = found.v.reshape(kv_shape)
        return numpy_math.attend(
            last, keys.reshape(kv_shape), values, scale=found.op.scale, visible=everything
        )

    def error(keys: NDArray[np.float32]) -> float:
        return float(np.abs(attend(keys) - attend(found.k)).mean())

    stored = error(mean + rounded(found.k - mean, TOKENS))
    as_they_are, without_mean, without_scales = TIMES_WORSE[name]
    assert error(rounded(found.k, ELEMENTS)) > as_they_are * stored
    assert error(rounded(found.k, TOKENS)) > without_mean * stored
    assert error(mean + rounded(found.k - mean, ELEMENTS)) > without_scales * stored
