"""Whether two ways to run a model predict the same next tokens over the tail of a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ellm.quality.divergence import Comparison, Flags
from ellm.quality.interfaces import QualityTokenizer
from ellm.quality.intervals import Interval, wilson
from ellm.quality.needle_text import needle_passage
from ellm.quality.plan import QualityPlan
from ellm.quality.texts import Text
from ellm.units import count_of, format_count

BLOCK_TOKENS = 64
SURE_MARGIN = 0.1
"""Margin from which on the reference is sure of its likeliest token."""
# Few texts have more, so that of a long one little beyond the tokens needed is encoded.
_CHARACTERS_PER_TOKEN = 8
WHOLE_TAIL = "all"
VALUE_DIGITS = "value digits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A text that is read up to its tail, which is fed token by token.

    Attributes:
        text: The text's name.
        length_tokens: The length it stands for.
        prompt: Tokens to read: a multiple of 64, since a tail begins with a KV block of its own.
        tail: Tokens (n,) to feed.
        following: The text's next token (n,) after each of the tail.
        parts: Positions (n,) of the tail to score besides the whole, by name.
    """

    text: str
    length_tokens: int
    prompt: Sequence[int]
    tail: Sequence[int]
    following: Sequence[int]
    parts: dict[str, Flags]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FidelityCell:
    """The predictions of one arm beside those of the reference over one tail.

    Attributes:
        text: The text's name.
        length_tokens: The length it was read to.
        arm: Who predicted.
        comparison: What was predicted.
        parts: As in the passage.
        blocks_read: KV blocks that were read in full.
        blocks_total: KV blocks that there were to choose from; 0 in exact mode.
        skipped_mass: Mean share of the attention in blocks that were not read in full.
    """

    text: str
    length_tokens: int
    arm: str
    comparison: Comparison
    parts: dict[str, Flags]
    blocks_read: int
    blocks_total: int
    skipped_mass: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityFigures:
    """What n positions come to.

    Attributes:
        n: Positions.
        mean_kl: Mean KL(reference || candidate) in nats.
        p99_kl: Its 99th percentile.
        max_kl: Its maximum.
        same_top: Share with the same likeliest token.
        same_top_interval: 95 % interval of that.
        sure: Positions where the reference's margin is above 0.1.
        sure_same_top: Share of those with the same likeliest token; 1 if there are none.
        nll_change: Mean change of the negative log-probability of the text's next token.
        blocks_read_share: Share of the KV blocks that were read in full, over the whole of the
            tails; None if nobody chose.
        skipped_mass: Mean share of the attention in the others.
    """

    n: int
    mean_kl: float
    p99_kl: float
    max_kl: float
    same_top: float
    same_top_interval: Interval
    sure: int
    sure_same_top: float
    nll_change: float
    blocks_read_share: float | None
    skipped_mass: float


def passages(
    tokenizer: QualityTokenizer, texts: Iterable[Text], plan: QualityPlan
) -> tuple[list[Passage], list[str]]:
    """Return the passages of a plan, and notes on texts that are too short for some length.

    Each text is cut at each length, and there is one more that is made of nothing but needles.
    """
    found: list[Passage] = []
    notes: list[str] = []
    for text in texts:
        needed = plan.lengths_tokens[-1] + plan.tail_tokens + 1
        tokens = first_tokens(tokenizer, text.content, needed)
        for length in plan.lengths_tokens:
            passage = cut_passage(text.name, tokens, length, plan.tail_tokens)
            if passage is not None:
                found.append(passage)
                continue
            notes.append(too_short(text.name, len(tokens), length, plan.tail_tokens))
    for length in plan.lengths_tokens:
        passage = needles(tokenizer, length, plan.tail_tokens)
        if passage is not None:
            found.append(passage)
    return found, notes


def first_tokens(tokenizer: QualityTokenizer, text: str, count: int) -> list[int]:
    """Return the first `count` tokens of a text, or all if it has fewer."""
    characters = count * _CHARACTERS_PER_TOKEN
    while True:
        ids = tokenizer.encode(text[:characters], add_bos=tokenizer.add_bos)
        if len(ids) >= count or characters >= len(text):
            return ids[:count]
        characters *= 2


def cut_passage(name: str, tokens: Sequence[int], length: int, tail: int) -> Passage | None:
    """Return the passage of a length, or None if there are too few tokens."""
    start = _whole_blocks(length)
    if len(tokens) < start + tail + 1:
        return None
    return Passage(
        text=name,
        length_tokens=length,
        prompt=tokens[:start],
        tail=tokens[start : start + tail],
        following=tokens[start + 1 : start + tail + 1],
        parts={WHOLE_TAIL: np.ones(tail, dtype=np.bool_)},
    )


def needles(
    tokenizer: QualityTokenizer, length: int, tail: int, *, variant: int = 0
) -> Passage | None:
    """Return the passage of nothing but needles; those of another `variant` are others."""
    tokens, is_value = needle_passage(
        tokenizer, prompt_tokens=_whole_blocks(length), tail_tokens=tail, variant=variant
    )
    passage = cut_passage("needles", tokens, length, tail)
    if passage is not None:
        passage.parts[VALUE_DIGITS] = is_value
    return passage


def too_short(name: str, tokens: int, length: int, tail: int) -> str:
    """Return the note on a text that is left out."""
    return (
        f"{name} has {count_of(tokens, 'token')}, {format_count(length)} and a tail of {tail} "
        "need more: left out"
    )


def figures(cells: Sequence[FidelityCell], part: str = WHOLE_TAIL) -> FidelityFigures | None:
    """Return the figures over all positions of cells, or over those of a part; None without any."""
    cells = [cell for cell in cells if part in cell.parts]
    chosen = [(cell.comparison, cell.parts[part]) for cell in cells]
    count = sum(int(mask.sum()) for _, mask in chosen)
    if not count:
        return None
    kl = np.concatenate([found.kl[mask] for found, mask in chosen])
    same_top = np.concatenate([found.same_top[mask] for found, mask in chosen])
    margin = np.concatenate([found.margin[mask] for found, mask in chosen])
    nll_change = np.concatenate([found.nll_change[mask] for found, mask in chosen])
    sure = margin > SURE_MARGIN
    blocks_total = sum(cell.blocks_total for cell in cells)
    blocks_read = sum(cell.blocks_read for cell in cells)
    return FidelityFigures(
        n=count,
        mean_kl=float(kl.mean()),
        p99_kl=float(np.quantile(kl, 0.99)),
        max_kl=float(kl.max()),
        same_top=float(same_top.mean()),
        same_top_interval=wilson(int(same_top.sum()), count),
        sure=int(sure.sum()),
        sure_same_top=float(same_top[sure].mean()) if sure.any() else 1.0,
        nll_change=float(nll_change.mean()),
        blocks_read_share=blocks_read / blocks_total if blocks_total else None,
        skipped_mass=float(np.mean([cell.skipped_mass for cell in cells])),
    )


def _whole_blocks(length: int) -> int:
    return length // BLOCK_TOKENS * BLOCK_TOKENS
