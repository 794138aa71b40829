#!/usr/bin/env python3
"""Measure attention by itself, over the 1.5B's KV: 28 layers, 12 heads on 2 KV heads of 128.

For each KV type and depth: the time a step of 1, 2, 4 and 8 rows spends in attention with the GB/s
of KV it reads, and of a chunk of 512 rows (prefill) with its GMAC/s. What rotates and stores keys
and values is in the figures; it is small.

    benchmarks/attention.py [--kv-types int8 f32] [--isa avx2] [--depths 4096 16384]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from ellm import native
from ellm.hardware.cpus import choose_cpus

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 28, 12, 2, 128
WIDTH = (HEADS + 2 * KV_HEADS) * HEAD_DIM
VOCAB = 64
CHUNK = 512
ROW_COUNTS = (1, 2, 4, 8)


def build(kv_type: str, isa: str, cpus: list[int], depth: int):
    """Return a native executor of attention alone, with room for `depth` tokens and a chunk."""
    num_blocks = (depth + CHUNK) // 64 + 1
    core = native.executor(
        isa=isa, cpus=cpus, max_rows=CHUNK, max_positions=num_blocks * 64,
        kv=(LAYERS, KV_HEADS, HEAD_DIM, kv_type), num_blocks=num_blocks, vocab_size=VOCAB,
        slot_widths=[WIDTH, HEADS * HEAD_DIM],
    )  # fmt: skip
    rng = np.random.default_rng(0)
    floats = rng.standard_normal((VOCAB, WIDTH)).astype(np.float32)
    table = np.empty(native.image_bytes("f32", VOCAB, WIDTH), dtype=np.uint8)
    native.repack("f32", VOCAB, WIDTH, floats.reshape(-1).view(np.uint8), table, cpus)
    weight = native.weight("f32", VOCAB, WIDTH, table, None)
    core.add_embed(weight, 1.0, 0)
    frequencies = [1e6 ** (-2 * i / HEAD_DIM) for i in range(HEAD_DIM // 2)]
    interleaved = False
    rope = core.add_rope_table(frequencies, 1.0, interleaved)
    for layer in range(LAYERS):
        core.add_rope_append(0, layer, HEADS, rope, None, None, 1e-6)
        core.add_attention(0, layer, HEADS, HEAD_DIM**-0.5, None, 1)
    core.add_head(0, np.ones(WIDTH, dtype=np.float32), 1e-6, weight)
    core.finish()
    return core, np.arange(num_blocks, dtype=np.int32)


def seconds(core, blocks, start: int, rows: int, repeats: int) -> float:
    """Return the shortest time of a step of `rows` rows at a depth: noise only adds."""
    tokens = np.arange(rows, dtype=np.int32) % VOCAB
    none = np.empty(0, dtype=np.int32)
    logits = np.empty((0, VOCAB), dtype=np.float32)
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        core.step(tokens, [(blocks, start, rows)], none, logits)
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    """Print one line per KV type and depth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kv-types", nargs="+", default=["int8", "f16", "f32"])
    parser.add_argument("--isa", default=native.choose_isa())
    parser.add_argument("--depths", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    cpus = choose_cpus(args.threads)
    bandwidth = native.read_bandwidth_gb_per_s(cpus, 1 << 30, 0.5)
    print(f"{args.isa}, {args.threads} threads, memory read {bandwidth:.1f} GB/s")
    print(
        "kv     depth   ms of rows:",
        *(f"{rows:>6}" for rows in ROW_COUNTS),
        "  GB/s   chunk GMAC/s",
    )
    for kv_type in args.kv_types:
        for depth in sorted(args.depths):
            core, blocks = build(kv_type, args.isa, cpus, depth)
            for start in range(0, depth, CHUNK):
                seconds(core, blocks, start, min(CHUNK, depth - start), 1)
            steps = {rows: seconds(core, blocks, depth, rows, args.repeats) for rows in ROW_COUNTS}
            nbytes = depth / 64 * native.kv_block_bytes((LAYERS, KV_HEADS, HEAD_DIM, kv_type))
            chunk = seconds(core, blocks, depth - CHUNK, CHUNK, 2)
            macs = LAYERS * HEADS * 2 * HEAD_DIM * CHUNK * (depth - CHUNK / 2)
            print(
                f"{kv_type:5} {depth:>6}             ",
                *(f"{steps[rows] * 1e3:6.2f}" for rows in ROW_COUNTS),
                f"{nbytes / steps[1] / 1e9:6.1f} {macs / chunk / 1e9:11.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
