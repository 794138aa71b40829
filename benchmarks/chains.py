#!/usr/bin/env python3
"""Measure what chains bring, by kind of answer: the same answers with and without, in turn.

Every prompt is read once and answered plainly, with copies alone, with a draft model too if one is
given, and with guesses at random; answers must be equal. What was read is kept in a directory, so
that all of these begin at once, also when this is run again.

    benchmarks/chains.py MODEL.gguf --prompts FILE [FILE ...] [--draft-model SMALL.gguf]
                         [--attention exact] [--only NAME] [--max-tokens N] [--repeat 1]
                         [--pad-to N] [--cache-dir DIR] [--json FILE]

`--pad-to N` puts other text of the standard library before the sources, so that the answer begins
at a depth of about N tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ellm import LLM, SamplingParams
from ellm.engine.chains import Chains
from ellm.speculative.source import DraftContext, Proposal

LICENCES = Path("/usr/share/common-licenses")
PADDING = ("argparse.py", "typing.py", "turtle.py", "inspect.py", "subprocess.py", "tarfile.py")
FREE_KINDS = {"prose": "prose", "new-code": "new-code"}


@dataclass(frozen=True)
class Figures:
    """One answer."""

    prompt: str
    kind: str
    variant: str
    depth_tokens: int
    answer_tokens: int
    seconds_per_token: float
    tokens_per_step: float
    proposed: int
    accepted: int
    guesses: dict[str, Any]


class RandomDrafter:
    """Guesses at random and claims to be right three times in four."""

    name = "random"
    outlook = None

    def __init__(self, vocab_size: int) -> None:
        """Guess tokens of a vocabulary."""
        self._random = random.Random(1)
        self._vocab_size = vocab_size

    def propose(self, most: int, context: DraftContext) -> Proposal:
        """Return as many guesses as are allowed."""
        del context
        tokens = [self._random.randrange(self._vocab_size) for _ in range(most)]
        return Proposal(self.name, tokens, [0.75] * most)

    def commit(self, tokens: object) -> None:
        """Learn nothing."""

    def close(self) -> None:
        """Hold nothing."""


def source_text(source: str) -> str:
    """Return a source of a prompt under a line with its name."""
    place, name = source.split(":", 1)
    root = LICENCES if place == "licence" else Path(sysconfig.get_path("stdlib"))
    return f"=== {name}\n{(root / name).read_text(encoding='utf-8')}\n"


def padding(llm: LLM, tokens: int) -> str:
    """Return text of about so many tokens."""
    text = "".join(source_text(f"stdlib:{name}") for name in PADDING)
    ids = llm.tokenizer.encode(text)
    return llm.tokenizer.decode(ids[: max(0, tokens)])


def messages_of(prompt: dict[str, Any], llm: LLM, pad_to: int) -> list[dict[str, str]]:
    """Return the chat of a prompt, padded at its front."""
    sources = "".join(source_text(source) for source in prompt["sources"])
    missing = pad_to - len(llm.tokenizer.encode(sources))
    front = padding(llm, missing) if pad_to else ""
    return [{"role": "user", "content": f"{front}{sources}{prompt['instruction']}"}]


def kind_of(prompt: dict[str, Any]) -> str:
    """Return the kind of a prompt; free ones are told apart by name."""
    return FREE_KINDS.get(prompt["name"], prompt["kind"])


def measure(
    llm: LLM, variant: str, prompt: dict[str, Any], options: argparse.Namespace
) -> tuple[Figures, list[int]]:
    """Answer one prompt; return figures and tokens."""
    params = SamplingParams(
        max_tokens=min(prompt["max_tokens"], options.max_tokens),
        chain_length=0 if variant == "plain" else None,
    )
    out = llm.chat(messages_of(prompt, llm, options.pad_to), params)
    stats = out.stats
    figures = Figures(
        prompt["name"],
        kind_of(prompt),
        variant,
        stats.prompt_tokens,
        stats.answer_tokens,
        stats.decode_seconds / max(1, stats.answer_tokens - 1),
        stats.tokens_per_step,
        stats.proposed_tokens,
        stats.accepted_tokens,
        {name: asdict(counts) for name, counts in stats.guesses.items()},
    )
    return figures, out.token_ids


def engines(options: argparse.Namespace, cache_dir: str) -> Iterator[tuple[str, LLM]]:
    """Yield a name and an engine per variant; weights and what was read are shared."""

    def engine(mode: str, draft: str | None = None) -> LLM:
        return LLM(
            options.model,
            context_tokens=options.context,
            attention=options.attention,
            speculation=mode,
            draft_model=draft,
            cache_dir=cache_dir,
        )

    suffix = engine("suffix")
    yield "plain", suffix
    yield "suffix", suffix
    if options.draft_model:
        yield "auto", engine("auto", options.draft_model)
    if options.random:
        guessing = engine("suffix")
        vocab_size = guessing.config.vocab_size
        core = guessing._open.core  # type: ignore[union-attr]
        core._chains = Chains([lambda: RandomDrafter(vocab_size)], most=5)
        yield "random", guessing


def report(found: list[Figures]) -> None:
    """Print speed over plain decoding by kind and variant."""
    plain = {(f.prompt): f.seconds_per_token for f in found if f.variant == "plain"}
    rows: dict[tuple[str, str], list[Figures]] = {}
    for figures in found:
        rows.setdefault((figures.kind, figures.variant), []).append(figures)
    print(f"{'kind':<16}{'variant':<10}{'speed':>7}{'tok/step':>10}{'right':>8}{'ms/tok':>8}")
    for (kind, variant), items in sorted(rows.items()):
        speed = statistics.geometric_mean(plain[f.prompt] / f.seconds_per_token for f in items)
        proposed = sum(f.proposed for f in items)
        right = f"{sum(f.accepted for f in items) / proposed:.2f}" if proposed else "-"
        per_step = statistics.mean(f.tokens_per_step for f in items)
        milliseconds = 1e3 * statistics.mean(f.seconds_per_token for f in items)
        print(
            f"{kind:<16}{variant:<10}{speed:>6.2f}x{per_step:>10.2f}{right:>8}{milliseconds:>8.1f}"
        )


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--prompts", nargs="+", required=True)
    parser.add_argument("--draft-model")
    parser.add_argument("--attention", default="exact")
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--only", action="append")
    parser.add_argument("--max-tokens", type=int, default=300)
    parser.add_argument("--pad-to", type=int, default=0)
    parser.add_argument("--random", action="store_true", help="guess at random, too")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--cache-dir")
    parser.add_argument("--json")
    options = parser.parse_args()
    prompts = [
        prompt
        for path in options.prompts
        for prompt in json.loads(Path(path).read_text(encoding="utf-8"))["prompts"]
        if not options.only or prompt["name"] in options.only
    ]
    found: list[Figures] = []
    with tempfile.TemporaryDirectory() as temporary:
        variants = list(engines(options, options.cache_dir or temporary))
        for prompt in prompts:
            expected: list[int] | None = None
            for _ in range(options.repeat):
                for variant, llm in variants:
                    figures, tokens = measure(llm, variant, prompt, options)
                    expected = expected or tokens
                    if tokens != expected:
                        print(f"{prompt['name']}: {variant} gave another answer", file=sys.stderr)
                        return 1
                    found.append(figures)
                    print(
                        f"{figures.prompt} {variant}: depth {figures.depth_tokens}, "
                        f"{1e3 * figures.seconds_per_token:.1f} ms per token, "
                        f"{figures.tokens_per_step:.2f} tokens per step, "
                        f"{figures.accepted} of {figures.proposed} right",
                        file=sys.stderr,
                        flush=True,
                    )
    report(found)
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(f) for f in found], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
