#!/usr/bin/env python3
"""Compare the predictions over int8 or f16 KV with those over float KV, deep in a real text.

The text is read as a prompt, its tail token by token, as decoding does: KL divergence of the next
token's distribution (float KV first), mean and 99th percentile, and how often the top token is the
same.

    benchmarks/kv_fidelity.py MODEL.gguf --text FILE [--depth 8000] [--tail 192] [--kv-type int8]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ellm.engine.loading import OpenedModel, open_model
from ellm.hardware.cpus import choose_cpus
from ellm.kv.block_pool import blocks_for
from ellm.program.executor import SequenceRows
from ellm.program.native_executor import load_native

CHUNK_ROWS = 512


def tail_logits(
    model: OpenedModel, tokens: NDArray[np.int32], tail: int, kv_type: str, threads: int | None
) -> Iterator[NDArray[np.float32]]:
    """Yield the logits (V,) at each of the last `tail` positions."""
    num_blocks = blocks_for(tokens.size)
    executor = load_native(
        model.file,
        model.program,
        cpus=choose_cpus(threads),
        num_blocks=num_blocks,
        max_rows=CHUNK_ROWS,
        kv_type=kv_type,
    )
    blocks = np.arange(num_blocks, dtype=np.int32)
    first_of_tail = tokens.size - tail
    for start in range(0, first_of_tail, CHUNK_ROWS):
        count = min(CHUNK_ROWS, first_of_tail - start)
        rows = [SequenceRows(blocks, start, count)]
        executor.step(tokens[start : start + count], rows, np.empty(0, dtype=np.int32))
    for position in range(first_of_tail, tokens.size):
        rows = [SequenceRows(blocks, position, 1)]
        one = tokens[position : position + 1]
        yield executor.step(one, rows, np.zeros(1, dtype=np.int32))[0]


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
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    model = open_model(str(args.model))
    ids = model.tokenizer.encode(args.text.read_text())
    if len(ids) < args.depth + args.tail:
        sys.exit(f"the text has {len(ids)} tokens, {args.depth + args.tail} are needed")
    tokens = np.array(ids[: args.depth + args.tail], dtype=np.int32)
    exact = list(tail_logits(model, tokens, args.tail, "f32", args.threads))
    divergences, same_top = [], 0
    found = tail_logits(model, tokens, args.tail, args.kv_type, args.threads)
    for expected, logits in zip(exact, found, strict=True):
        p, q = log_softmax(expected), log_softmax(logits)
        divergences.append(float((np.exp(p) * (p - q)).sum()))
        same_top += int(expected.argmax() == logits.argmax())
    print(
        f"{args.model.name}, {args.kv_type} against f32 KV, tail of {args.tail} at {args.depth}: "
        f"mean KL {np.mean(divergences):.2e}, p99 {np.quantile(divergences, 0.99):.2e}, "
        f"same top token {same_top / args.tail:.1%}"
    )


if __name__ == "__main__":
    main()
