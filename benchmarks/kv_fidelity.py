#!/usr/bin/env python3
"""Compare the predictions over int8 or f16 KV with those over float KV, deep in a real text.

The text is read as a prompt, its tail token by token, as decoding does: KL divergence of the next
token's distribution (float KV first), mean and 99th percentile, and how often the top token is the
same.

Kernels of quantised weights round activations to int8, which turns a difference of any size in KV
into flipped roundings further on: f16 KV shows how much. With `--float` the weights are decoded
to float32 first, whose kernels round no activation: what is left is the rounding of keys and values
alone. That takes four bytes per weight of memory, and as much in the temporary directory.

    benchmarks/kv_fidelity.py MODEL.gguf --text FILE [--depth 8000] [--tail 192] [--kv-type int8]
                              [--float]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ellm.engine.opening import OpenedModel, open_model
from ellm.formats.quantization import decode
from ellm.hardware.cpus import choose_cpus
from ellm.kv.block_pool import blocks_for
from ellm.program.executor import Executor, SequenceRows
from ellm.program.native_executor import load_native
from ellm.program.weights import TensorLike, WeightSource

CHUNK_ROWS = 512


@dataclass(frozen=True)
class FloatTensor:
    """A tensor decoded to float32."""

    type_name: str
    shape: tuple[int, ...]


class FloatWeights:
    """A model file whose tensors are float32."""

    def __init__(self, source: WeightSource) -> None:
        """Read from `source`."""
        self._source = source
        self.fingerprint = source.fingerprint + "-float"
        self.tensors: dict[str, TensorLike] = {
            name: FloatTensor("f32", tensor.shape) for name, tensor in source.tensors.items()
        }

    def read(self, name: str) -> NDArray[np.uint8]:
        """Return a tensor's floats as bytes."""
        tensor = self._source.tensors[name]
        floats = decode(tensor.type_name, self._source.read(name), tensor.shape)
        return np.ascontiguousarray(floats, dtype=np.float32).reshape(-1).view(np.uint8)


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
    return load_native(
        FloatWeights(model.file) if args.float else model.file,
        model.program,
        cpus=choose_cpus(args.threads),
        num_blocks=num_blocks,
        max_rows=CHUNK_ROWS,
        kv_type=kv_type,
    )


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return log-probabilities in double precision."""
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--depth", type=int, default=8000)
    parser.add_argument("--tail", type=int, default=192)
    parser.add_argument("--kv-type", choices=("int8", "f16"), default="int8")
    parser.add_argument("--float", action="store_true", help="with weights decoded to float32")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        if args.float:
            os.environ["ELLM_CACHE"] = cache
        compare(args)


def compare(args: argparse.Namespace) -> None:
    """Print one line of figures."""
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
