"""Tiny random models on the native executor, and the NumPy executor that quantises as it does."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ellm import native
from ellm.hardware.cpus import allowed_cpus
from ellm.program import numpy_math
from ellm.program.executor import Executor, SequenceRows
from ellm.program.native_executor import NativeExecutor
from ellm.program.numpy_executor import NumpyExecutor
from ellm.program.ops import LinearPart
from ellm.program.weights import load_weights
from tests.support.tiny_models import TinyModel, TinyTensor

INTEGER_FORMATS = [e["name"] for e in native.weight_formats() if e["integer_codes"]]


class TinySource:
    """A tiny model as a weight source."""

    def __init__(self, model: TinyModel) -> None:
        self.tensors: Mapping[str, TinyTensor] = model.tensors
        digest = hashlib.blake2b(digest_size=16)
        for name, tensor in model.tensors.items():
            digest.update(name.encode() + tensor.data.tobytes())
        self.fingerprint = digest.hexdigest()

    def read(self, name: str) -> NDArray[np.uint8]:
        return self.tensors[name].data


def native_executor(
    model: TinyModel,
    *,
    isa: str | None = None,
    threads: int = 1,
    num_blocks: int = 32,
    max_rows: int = 512,
    kv_type: str = "f32",
) -> NativeExecutor:
    source = TinySource(model)
    # More threads than CPUs take turns: slow, and still the same result.
    allowed = sorted(allowed_cpus())
    cpus = [allowed[i % len(allowed)] for i in range(threads)]
    weights = load_weights(model.program, source, cpus=[0])
    return NativeExecutor(
        model.program,
        weights,
        source,
        cpus=cpus,
        num_blocks=num_blocks,
        max_rows=max_rows,
        kv_type=kv_type,
        isa=isa,
    )


class QuantizingExecutor(NumpyExecutor):
    """The NumPy executor with inputs of integer matrices rounded to int8 per group of 32."""

    def __init__(self, model: TinyModel, num_blocks: int = 32) -> None:
        super().__init__(model.program, model.weights, num_blocks)
        self._model = model

    def _linear(self, part: LinearPart, x: NDArray[np.float32]) -> NDArray[np.float32]:
        if self._model.tensors[part.weight].type_name in INTEGER_FORMATS:
            groups = x.reshape(x.shape[0], -1, 32)
            low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
            centre, scale = (low + high) / 2, (high - low) / 254
            offsets = groups - centre
            codes = np.rint(np.divide(offsets, scale, out=np.zeros_like(groups), where=scale > 0))
            x = (codes * scale + centre).reshape(x.shape).astype(np.float32)
        bias = None if part.bias is None else self._model.weights(part.bias)
        return numpy_math.linear(x, self._model.weights(part.weight), bias)


def run_chunks(
    executor: Executor,
    tokens: NDArray[np.int32],
    chunks: Sequence[int],
    blocks: NDArray[np.int32] | None = None,
) -> NDArray[np.float32]:
    """Feed `tokens` in chunks of these sizes, the last repeated, and return all logits."""
    if blocks is None:
        blocks = np.arange(executor.num_blocks, dtype=np.int32)
    logits, start, turn = [], 0, 0
    while start < tokens.size:
        count = min(chunks[min(turn, len(chunks) - 1)], tokens.size - start)
        rows = [SequenceRows(blocks, start, count)]
        wanted = np.arange(count, dtype=np.int32)
        logits.append(executor.step(tokens[start : start + count], rows, wanted))
        start += count
        turn += 1
    return np.concatenate(logits)
