#!/usr/bin/env python3
"""Record what llama.cpp says about the real models, for comparison.

For each model: token ids of awkward strings, the rendered chat template of small
conversations, and, teacher-forced over a real text given as token ids, the top-1
token and the log-probability of the true next token at each position.

Usage:
    make_reference.py MODELS_DIR OUT_DIR [--positions 1024]

Needs llama-cpp-python. The recorded files stand beside this script.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import Llama
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

FILES = {
    "smollm2-135m": "smollm2-135m-instruct-q4_1.gguf",
    "gemma3-270m": "gemma-3-270m-q4_k_m.gguf",
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "qwen2.5-coder-1.5b": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
}
STRINGS = [
    "",
    " ",
    "  two spaces",
    "tab\tand\nnewline\r\n",
    "Hello, world!",
    "hello WORLD HeLLo",
    "don't can't WE'LL",
    "1234567890",
    "3.14159e-10 0xDEADBEEF 1_000_000",
    "   indented\n\tcode(x, y) -> {z: [1, 2]}\n\n\n",
    "naïve café résumé Ångström",
    "日本語のテキスト、中文文本，한국어 텍스트",
    "Привет мир Γειά σου κόσμε שלום عالم",
    "👍🏽👨‍👩‍👧‍👦🇺🇳 emoji",
    "a" * 100,
    "ab " * 50,
    "\u00a0non-breaking\u2009thin\u3000wide",
    "e\u0301 vs \u00e9",
    "snake_case camelCase kebab-case",
    "https://example.org/a?b=c&d=e#f",
    "<|im_start|>user\nx<|im_end|>",
    "<think> </think> <bos> <s> [INST]",
    "def f(x):\n    return x**2  # square\n",
    "٣٤٥ ⅷ ½ x² H₂O",
    "\ufeffbom",
    "mixed١٢٣abc456",
    "line\u2028separator\u2029paragraph",
    "'''\"\"\"```",
    "end with space ",
    "\n\n\n\n",
]
CONVERSATIONS = [
    [{"role": "user", "content": "What is two plus two?"}],
    [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": "Name a river."},
        {"role": "assistant", "content": "The Rhine."},
        {"role": "user", "content": "Another."},
    ],
]


def chat(llm: Llama, template: str, messages: list[dict[str, str]]) -> str | None:
    def piece(token: int) -> str:
        return llm._model.token_get_text(token) if token >= 0 else ""

    formatter = Jinja2ChatFormatter(
        template=template,
        eos_token=piece(llm.token_eos()),
        bos_token=piece(llm.token_bos()),
        add_generation_prompt=True,
    )
    try:
        return formatter(messages=messages).prompt
    except Exception as error:  # a template may refuse a role; record that it does
        return f"ERROR: {error}"


def teacher_forced(llm: Llama, tokens: list[int]) -> tuple[list[int], list[float]]:
    llm.reset()
    llm.eval(tokens)
    top1, logprob = [], []
    for position in range(len(tokens) - 1):
        logits = llm.scores[position].astype(np.float64)
        logits -= logits.max()
        log_z = np.log(np.exp(logits).sum())
        top1.append(int(logits.argmax()))
        logprob.append(round(float(logits[tokens[position + 1]] - log_z), 4))
    return top1, logprob


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models_dir", type=Path)
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--positions", type=int, default=1024)
    args = parser.parse_args()
    text = (Path(sysconfig.get_paths()["stdlib"]) / "json" / "decoder.py").read_bytes()
    for name, file in FILES.items():
        llm = Llama(
            model_path=str(args.models_dir / file),
            n_ctx=args.positions + 8,
            n_threads=2,
            n_batch=512,
            flash_attn=True,
            logits_all=True,
            verbose=False,
        )
        ids = llm.tokenize(text, add_bos=llm._model.add_bos_token(), special=False)[
            : args.positions
        ]
        top1, logprob = teacher_forced(llm, ids)
        template = llm.metadata.get("tokenizer.chat_template")
        record = {
            "model": file,
            "made_with": f"llama-cpp-python {llama_cpp.__version__}, flash attention, f16 KV",
            "add_bos": bool(llm._model.add_bos_token()),
            "tokenize": [
                {
                    "text": s,
                    "ids": llm.tokenize(s.encode(), add_bos=False, special=False),
                    "ids_parse_special": llm.tokenize(s.encode(), add_bos=False, special=True),
                }
                for s in STRINGS
            ],
            "chat": [{"messages": m, "prompt": chat(llm, template, m)} for m in CONVERSATIONS]
            if template
            else [],
            "text_ids": ids,
            "top1": top1,
            "logprob_of_next": logprob,
            "mean_logprob": round(float(np.mean(logprob)), 5),
        }
        (args.out_dir / f"{name}.json").write_text(
            json.dumps(record, ensure_ascii=True, separators=(",", ":")) + "\n"
        )
        print(name, len(ids), record["mean_logprob"], flush=True)


if __name__ == "__main__":
    main()
