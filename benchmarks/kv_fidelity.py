#!/usr/bin/env python3
"""Compare the predictions over int8 or f16 KV with those over float KV, deep in a real text.

The text is read as a prompt, its tail token by token, as decoding does: KL divergence of the next
token's distribution (float KV first), mean and 99th percentile, and how often the top token is the
same.

The native core rounds activations to int8, which turns a difference of any size in KV into some
flipped roundings further on: f16 KV shows how much. `--float` computes in float32 with NumPy
instead, so that what is left is the rounding of int8 keys and values alone; it takes minutes and
four bytes per weight.

    benchmarks/kv_fidelity.py MODEL.gguf --text FILE [--depth 8000] [--tail 192] [--kv-type int8]
                              [--float]
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ellm.engine.loading import OpenedModel, open_model
from ellm.formats.quantization import decode
from ellm.hardware.cpus import choose_cpus
from ellm.kv.block_pool import blocks_for
from ellm.program.executor import BLOCK_TOKENS, Executor, SequenceRows
from ellm.program.native_executor import load_native
from ellm.program.numpy_executor import NumpyExecutor
from ellm.program.numpy_math import Floats
from ellm.program.ops import Attention, Program

CHUNK_ROWS = 512
Weights = Callable[[str], Floats]


class Int8KvExecutor(NumpyExecutor):
    """Rounds a block as int8 KV stores it once rows behind it attend; its own see it in float.

    The rounding of native/kernels/attention/int8_layout.h: keys as residual of the block's mean,
    values as they are, one scale per token and head.
    """

    def __init__(self, program: Program, weights: Weights, num_blocks: int) -> None:
        """Make an executor with empty KV."""
        super().__init__(program, weights, num_blocks)
        self._closed: set[tuple[int, int]] = set()

    def _attend_sequence(self, op: Attention, sequence: SequenceRows, q: Floats) -> Floats:
        outs, row = [], 0
        while row < sequence.count:
            position = sequence.start + row
            own = position // BLOCK_TOKENS
            count = min((own + 1) * BLOCK_TOKENS - position, sequence.count - row)
            if own > 0:
                self._close(op.layer, int(sequence.blocks[own - 1]))
            part = SequenceRows(sequence.blocks, position, count)
            outs.append(super()._attend_sequence(op, part, q[row : row + count]))
            row += count
        return np.concatenate(outs)

    def _close(self, layer: int, block: int) -> None:
        if (layer, block) in self._closed:
            return
        self._closed.add((layer, block))
        keys, values = self._keys[layer, block], self._values[layer, block]
        mean = keys.mean(axis=0)
        keys[:] = mean + _rounded(keys - mean)
        values[:] = _rounded(values)


def _rounded(x: Floats) -> Floats:
    scale = np.abs(x).max(axis=-1, keepdims=True) / 127
    return np.rint(np.divide(x, scale, out=np.zeros_like(x), where=scale > 0)) * scale


def tail_logits(
    tokens: NDArray[np.int32], tail: int, executor: Executor
) -> Iterator[NDArray[np.float32]]:
    """Yield the logits (V,) at each of the last `tail` positions."""
    blocks = np.arange(executor.num_blocks, dtype=np.int32)
    first_of_tail = tokens.size - tail
    for start in range(0, first_of_tail, CHUNK_ROWS):
        count = min(CHUNK_ROWS, first_of_tail - start)
        rows = [SequenceRows(blocks, start, count)]
        executor.step(tokens[start : start + count], rows, np.empty(0, dtype=np.int32))
    for position in range(first_of_tail, tokens.size):
        rows = [SequenceRows(blocks, position, 1)]
        one = tokens[position : position + 1]
        yield executor.step(one, rows, np.zeros(1, dtype=np.int32))[0]


def make_executor(
    model: OpenedModel, kv_type: str, num_blocks: int, args: argparse.Namespace
) -> Executor:
    """Return the executor whose predictions are asked for."""
    if args.float:
        kind = Int8KvExecutor if kv_type == "int8" else NumpyExecutor
        return kind(model.program, float_weights(model), num_blocks)
    return load_native(
        model.file,
        model.program,
        cpus=choose_cpus(args.threads),
        num_blocks=num_blocks,
        max_rows=CHUNK_ROWS,
        kv_type=kv_type,
    )


def float_weights(model: OpenedModel) -> Weights:
    """Return a function that decodes a tensor once and keeps it."""

    @functools.cache
    def weights(name: str) -> Floats:
        tensor = model.file.tensors[name]
        return decode(tensor.type_name, model.file.read(name), tensor.shape)

    return weights


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return log-probabilities in double precision."""
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def main() -> None:
    """Print one line of figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--depth", type=int, default=8000)
    parser.add_argument("--tail", type=int, default=192)
    parser.add_argument("--kv-type", choices=("int8", "f16"), default="int8")
    parser.add_argument("--float", action="store_true", help="in float32 with NumPy; int8 only")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.float and args.kv_type != "int8":
        parser.error("--float knows the rounding of int8 KV only")
    model = open_model(str(args.model))
    ids = model.tokenizer.encode(args.text.read_text())
    if len(ids) < args.depth + args.tail:
        sys.exit(f"the text has {len(ids)} tokens, {args.depth + args.tail} are needed")
    tokens = np.array(ids[: args.depth + args.tail], dtype=np.int32)
    num_blocks = blocks_for(tokens.size)
    exact = list(tail_logits(tokens, args.tail, make_executor(model, "f32", num_blocks, args)))
    divergences, same_top = [], 0
    found = tail_logits(tokens, args.tail, make_executor(model, args.kv_type, num_blocks, args))
    for expected, logits in zip(exact, found, strict=True):
        p, q = log_softmax(expected), log_softmax(logits)
        divergences.append(float((np.exp(p) * (p - q)).sum()))
        same_top += int(expected.argmax() == logits.argmax())
    print(
        f"{args.model.name}, {args.kv_type} against f32 KV, "
        f"{'float' if args.float else 'int8'} activations, tail of {args.tail} at {args.depth}: "
        f"mean KL {np.mean(divergences):.2e}, p99 {np.quantile(divergences, 0.99):.2e}, "
        f"same top token {same_top / args.tail:.1%}"
    )


if __name__ == "__main__":
    main()
