#!/usr/bin/env python3
"""Add the float32 truth to the recorded references.

The weights are exactly those of the GGUF file, dequantised; all arithmetic is
float32 (PyTorch, transformers' GGUF loader, eager attention). Fields added to each
record: `f32_top1` and `f32_logprob_of_next`, teacher-forced over `text_ids`, and
`llamacpp_vs_f32`: how far llama.cpp itself is from this truth on the same text.

Usage:
    make_truth.py MODELS_DIR RECORD.json ...

Needs torch, transformers, accelerate and gguf.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models_dir", type=Path)
    parser.add_argument("records", type=Path, nargs="+")
    args = parser.parse_args()
    for path in args.records:
        record = json.loads(path.read_text())
        model = AutoModelForCausalLM.from_pretrained(
            args.models_dir,
            gguf_file=record["model"],
            dtype=torch.float32,
            attn_implementation="eager",
        ).eval()
        ids = torch.tensor(record["text_ids"])
        with torch.no_grad():
            logits = model(ids[None]).logits[0].double()
        logprob = torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), ids[1:]].numpy()
        top1 = logits.argmax(-1)[:-1].numpy()
        record["f32_top1"] = top1.tolist()
        record["f32_logprob_of_next"] = [round(float(x), 5) for x in logprob]
        record["f32_mean_logprob"] = round(float(logprob.mean()), 5)
        record["llamacpp_vs_f32"] = {
            "top1_agreement": round(float((np.array(record["top1"]) == top1).mean()), 4),
            "mean_abs_logprob_difference": round(
                float(np.abs(logprob - np.array(record["logprob_of_next"])).mean()), 4
            ),
        }
        path.write_text(json.dumps(record, ensure_ascii=True, separators=(",", ":")) + "\n")
        print(path.name, record["llamacpp_vs_f32"], flush=True)


if __name__ == "__main__":
    main()
