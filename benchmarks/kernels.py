#!/usr/bin/env python3
"""Measure the weight kernels by themselves: GB/s of one row, GMAC/s of many, per format and ISA.

A step of one row reads every weight once, so its kernel should run at the speed of memory; a step
of 512 rows should run at the speed of arithmetic. Both are taken through the executor, over a
matrix of the 1.5B's feed-forward that lies in memory as often as the working set asks for (1.2 GB,
past any cache). The bandwidth they are compared with is measured before and after, by the same
threads; all figures are of the best of the repeats.

    PYTHONPATH=. benchmarks/kernels.py [--formats q4_k q6_k] [--isa avx2] [--threads 2] [--gb 1.2]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from tests.support.random_blocks import random_weights

from ellm import native
from ellm.hardware.cpus import choose_cpus

ROWS, COLS = 8960, 1536
VOCAB = 32
ROW_COUNTS = (1, 2, 4, 8, 512)
KV = (1, 1, 64, "f32")


def build(format_name: str, isa: str, cpus: list[int], nbytes: float):
    """Return a native executor of enough copies of one matrix, and the bytes a step reads."""
    rng = np.random.default_rng(0)
    raw = random_weights(format_name, (ROWS, COLS), 0.02, rng)
    image = np.empty(native.image_bytes(format_name, ROWS, COLS), dtype=np.uint8)
    native.repack(format_name, ROWS, COLS, raw, image, cpus)
    copies = max(1, round(nbytes / image.size))
    core = native.executor(
        isa=isa, cpus=cpus, max_rows=max(ROW_COUNTS), max_positions=1024, kv=KV, num_blocks=16,
        vocab_size=VOCAB, slot_widths=[COLS, COLS, ROWS],
    )  # fmt: skip
    table = np.empty(native.image_bytes("f32", VOCAB, COLS), dtype=np.uint8)
    floats = rng.standard_normal((VOCAB, COLS)).astype(np.float32)
    native.repack("f32", VOCAB, COLS, floats.reshape(-1).view(np.uint8), table, cpus)
    ones = np.ones(COLS, dtype=np.float32)
    core.add_embed(native.weight("f32", VOCAB, COLS, table, None), 1.0, 0)
    core.add_rms_norm(0, ones, 1e-6, 1)
    for _ in range(copies):
        core.add_linear(1, [native.weight(format_name, ROWS, COLS, image.copy(), None)], 2)
    core.add_head(0, ones, 1e-6, native.weight("f32", VOCAB, COLS, table, None))
    core.finish()
    return core, copies


def step_seconds(core, rows: int, repeats: int) -> float:
    """Return the shortest time of a step of `rows` rows: noise only adds."""
    tokens = np.zeros(rows, dtype=np.int32)
    blocks = np.arange(16, dtype=np.int32)
    none = np.empty(0, dtype=np.int32)
    logits = np.empty((0, VOCAB), dtype=np.float32)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        core.step(tokens, [(blocks, 0, rows)], none, logits)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def main() -> None:
    """Print one line per format and ISA."""
    known = [item["name"] for item in native.weight_formats()]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", nargs="+", choices=known, default=known)
    parser.add_argument("--isa", nargs="+", default=[native.choose_isa()])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--gb", type=float, default=1.2, help="bytes of the weights, in 1e9")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cpus = choose_cpus(args.threads)
    results = []
    print(f"{args.threads} threads, {args.gb} GB of weights, best of {args.repeats} steps")
    print(f"{'format':7} {'isa':7} {'1 row GB/s':>10} {'of read':>8}  GMAC/s at", *ROW_COUNTS[1:])
    for format_name in args.formats:
        for isa in args.isa:
            core, copies = build(format_name, isa, cpus, args.gb * 1e9)
            nbytes = copies * native.image_bytes(format_name, ROWS, COLS)
            macs = copies * ROWS * COLS
            before = native.read_bandwidth_gb_per_s(cpus, 1 << 30, 0.5)
            seconds = {
                rows: step_seconds(core, rows, args.repeats if rows <= 8 else 2)
                for rows in ROW_COUNTS
            }
            bandwidth = max(before, native.read_bandwidth_gb_per_s(cpus, 1 << 30, 0.5))
            reached = nbytes / seconds[1] / 1e9
            rates = {rows: rows * macs / seconds[rows] / 1e9 for rows in ROW_COUNTS}
            print(
                f"{format_name:7} {isa:7} {reached:10.1f} {reached / bandwidth:8.0%}   ",
                *(f"{rates[rows]:7.1f}" for rows in ROW_COUNTS[1:]),
                flush=True,
            )
            results.append(
                {
                    "format": format_name,
                    "isa": isa,
                    "read_bandwidth_gb_per_s": bandwidth,
                    "gb_per_s": reached,
                    "gmac_per_s": rates,
                }
            )
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
