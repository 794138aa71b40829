#!/usr/bin/env python3
"""Show where the time of a step goes: ms, bytes, GB/s and share of each kind of op.

A text is read to a depth, then steps of `--rows` rows are run from there. For every op the median
of the steps is taken; ops of one kind are added up. Bytes are those of matrices and of the KV that
the rows see; activations, which stay in the caches, are not counted.

    benchmarks/ops.py MODEL.gguf --text FILE [--depth 4096] [--rows 1] [--threads 2]
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from ellm import native
from ellm.config.engine import KV_TYPES
from ellm.engine.opening import open_model
from ellm.hardware.cpus import choose_cpus
from ellm.kv.block_pool import blocks_for
from ellm.program.executor import BLOCK_TOKENS, SequenceRows
from ellm.program.native_executor import load_native
from ellm.program.ops import Attention, GatedLinear, Head, Linear, LinearAdd, Program
from ellm.program.weights import ImageLayout

CHUNK_ROWS = 512


def kinds(program: Program, places: dict[str, int], kv_bytes: int) -> list[tuple[str, int]]:
    """Return the kind of every op and the bytes it reads."""

    def matrices(*weights: str) -> tuple[str, int]:
        # "blk.0.attn_q.weight" -> "attn_q"
        names = ", ".join(weight.split(".")[-2] for weight in weights)
        return names, sum(places[weight] for weight in weights)

    found = []
    for op in program.ops:
        match op:
            case Linear(parts=parts):
                found.append(matrices(*(part.weight for part in parts)))
            case LinearAdd(part=part):
                found.append(matrices(part.weight))
            case GatedLinear(gate=gate, up=up):
                found.append(matrices(gate.weight, up.weight))
            case Attention():
                found.append(("attention", kv_bytes))
            case Head(weight=weight):
                found.append(("head", places[weight]))
            case _:
                found.append(("norms, rope, embedding", 0))
    return found


def main() -> None:
    """Print one line per kind of op."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--depth", type=int, default=4096)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-type", choices=KV_TYPES, default="int8")
    args = parser.parse_args()
    model = open_model(str(args.model))
    ids = model.tokenizer.encode(args.text.read_text())
    if len(ids) < args.depth + args.rows:
        sys.exit(f"the text has {len(ids)} tokens, {args.depth + args.rows} are needed")
    tokens = np.array(ids, dtype=np.int32)
    cpus = choose_cpus(args.threads)
    program = model.program
    executor = load_native(
        model.file, program, cpus=cpus, num_blocks=blocks_for(args.depth + args.rows),
        max_rows=CHUNK_ROWS, kv_type=args.kv_type,
    )  # fmt: skip
    blocks = np.arange(executor.num_blocks, dtype=np.int32)
    for start in range(0, args.depth, CHUNK_ROWS):
        count = min(CHUNK_ROWS, args.depth - start)
        rows = [SequenceRows(blocks, start, count)]
        executor.step(tokens[start : start + count], rows, np.empty(0, dtype=np.int32))
    rows = [SequenceRows(blocks, args.depth, args.rows)]
    wanted = np.arange(args.rows, dtype=np.int32)
    times = []
    for _ in range(args.steps):
        executor.step(tokens[args.depth : args.depth + args.rows], rows, wanted)
        times.append(executor.op_seconds())
    seconds = np.median(times, axis=0)
    places = {place.name: place.nbytes for place in ImageLayout.plan(program, model.file).places}
    shape = (1, program.num_kv_heads, program.head_dim, args.kv_type)
    kv_bytes = native.kv_block_bytes(shape) * args.depth // BLOCK_TOKENS
    totals: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for (kind, nbytes), taken in zip(kinds(program, places, kv_bytes), seconds, strict=True):
        totals[kind] = (totals[kind][0] + taken, totals[kind][1] + nbytes)
    bandwidth = native.read_bandwidth_gb_per_s(cpus, 1 << 30, 1.0)
    whole = sum(taken for taken, _ in totals.values())
    print(
        f"{args.model.name}, {executor.isa}, {args.threads} threads, {args.kv_type} KV, "
        f"{args.rows} rows at {args.depth}: {whole * 1e3:.1f} ms; memory reads {bandwidth:.1f} GB/s"
    )
    print(f"{'op':24} {'ms':>7} {'share':>6} {'MB':>7} {'GB/s':>6} {'of read':>8}")
    for kind, (taken, nbytes) in sorted(totals.items(), key=lambda item: -item[1][0]):
        rate = nbytes / taken / 1e9
        print(
            f"{kind:24} {taken * 1e3:7.2f} {taken / whole:6.1%} {nbytes / 1e6:7.1f} "
            f"{rate:6.1f} {rate / bandwidth:8.0%}"
        )


if __name__ == "__main__":
    main()
