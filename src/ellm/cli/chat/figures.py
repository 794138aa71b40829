"""What a chat tells of tokens: one line after each answer, and how much of the context is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ellm.cli.report import format_rate
from ellm.units import format_count, format_duration

if TYPE_CHECKING:
    from ellm.engine.stats import Stats


def used_tokens(stats: Stats) -> int:
    """Return the tokens of the context that an answer and what came before it take."""
    return stats.prompt_tokens + stats.answer_tokens


def short_figures(stats: Stats, context_tokens: int) -> str:
    """Return one line about an answer."""
    known = [
        f"{format_count(tokens)} from {place}"
        for tokens, place in (
            (stats.cached_tokens_memory, "memory"),
            (stats.cached_tokens_disk, "disk"),
        )
        if tokens
    ]
    read = stats.prompt_tokens - stats.cached_tokens_memory - stats.cached_tokens_disk
    parts = [
        context_use(used_tokens(stats), context_tokens),
        ", ".join([*known, f"{format_count(read)} read"]),
        f"first token after {format_duration(stats.time_to_first_token_seconds)}",
        format_rate(stats.decode_tokens_per_second),
    ]
    return f"[{'; '.join(parts)}]"


def context_use(tokens: int, context_tokens: int) -> str:
    """Return how much of the context is used."""
    return f"{format_count(tokens)} of {format_count(context_tokens)} tokens"
