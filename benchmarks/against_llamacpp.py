#!/usr/bin/env python3
"""Compare decode and prefill speed with llama.cpp: same tokens, same threads, turn by turn.

Machines are noisy, so only ratios within one run mean something: every round measures the peer and
then eLLM, and the table gives the median of the rounds' ratios with their range. eLLM is measured
through `LLM.generate`, sampling included; the peer through its evaluation call alone.

The peer needs llama-cpp-python built for this CPU in an environment of its own, and the script
`peer_llamacpp.py` that comes with the project's shared material:

    benchmarks/against_llamacpp.py MODEL.gguf --text FILE --peer-python PATH --peer-script PATH
                                   [--depths 512 4096] [--decode 24] [--threads 2] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from ellm import LLM, SamplingParams

FIELDS = ("decode_tokens_per_second", "prefill_tokens_per_second")


def measure_peer(args: argparse.Namespace, kv: str) -> dict[int, dict[str, float]]:
    """Return the peer's figures by depth."""
    command = [
        args.peer_python, args.peer_script, args.model, "--text", args.text,
        "--depths", *map(str, args.depths), "--decode", str(args.decode),
        "--threads", str(args.threads), "--kv", kv,
    ]  # fmt: skip
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return {row["depth_tokens"]: row for row in json.loads(done.stdout)["rows"]}


def measure_ellm(args: argparse.Namespace) -> dict[int, dict[str, float]]:
    """Return our figures by depth."""
    rows = {}
    deepest = max(args.depths) + args.decode + 64
    # Every token by a step of its own, every prompt read: as the peer does.
    options = {"threads": args.threads, "context_tokens": deepest, "kv_type": args.kv_type}
    options |= {"speculation": "off", "cache_reuse": False}
    with LLM(args.model, **options) as llm:
        ids = llm.tokenizer.encode(Path(args.text).read_text())
        if len(ids) < max(args.depths):
            sys.exit(f"the text has {len(ids)} tokens, the largest depth is {max(args.depths)}")
        params = SamplingParams(max_tokens=args.decode, ignore_eos=True)
        for depth in args.depths:
            stats = llm.generate(ids[:depth], params).stats
            rows[depth] = {field: getattr(stats, field) for field in FIELDS}
    return rows


def main() -> None:
    """Print the table and, with --json, write every round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--peer-python", type=Path, required=True)
    parser.add_argument("--peer-script", type=Path, required=True)
    parser.add_argument("--depths", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--decode", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kv-type", default="int8", help="of eLLM")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rounds: list[dict[str, Any]] = []
    for turn in range(args.rounds):
        peers = [measure_peer(args, kv) for kv in ("f16", "q8_0")]
        ours = measure_ellm(args)
        for depth in args.depths:
            best = {field: max(peer[depth][field] for peer in peers) for field in FIELDS}
            rounds.append({"round": turn, "depth": depth, "peer": best, "ellm": ours[depth]})
    print(
        f"{args.model.name}, {args.threads} threads, {platform.processor() or platform.machine()}"
    )
    print(
        f"{args.rounds} rounds, tokens per second; KV of llama.cpp: the better of f16 and q8_0, "
        f"of eLLM: {args.kv_type}"
    )
    print(f"{'depth':>7} {'':8} {'llama.cpp':>10} {'eLLM':>8} {'ratio':>6}  range")
    for depth in args.depths:
        for field in FIELDS:
            rows = [row for row in rounds if row["depth"] == depth]
            ratios = [row["ellm"][field] / row["peer"][field] for row in rows]
            peer, ours = (
                statistics.median(r[who][field] for r in rows) for who in ("peer", "ellm")
            )
            print(
                f"{depth:>7} {field.split('_')[0]:8} {peer:>10.1f} {ours:>8.1f} "
                f"{statistics.median(ratios):>6.2f}  {min(ratios):.2f}..{max(ratios):.2f}"
            )
    if args.json:
        report = {"command": sys.argv, "machine": platform.platform(), "rounds": rounds}
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
