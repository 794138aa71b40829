"""The figures after an answer, for people and as JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ellm.units import count_of, format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from ellm.engine.stats import ModelFacts, Stats

_DERIVED = (
    "prefill_tokens_per_second",
    "decode_tokens_per_second",
    "read_bandwidth_gb_per_s",
    "decode_ceiling_tokens_per_second",
    "mem_bandwidth_util",
    "acceptance_rate",
)
_FINISHED = {
    "stop": "the model ended it",
    "length": "the limit of tokens was reached",
    "abort": "interrupted",
}


def stats_block(stats: Stats, finish_reason: str) -> str:
    """Return the block of figures, one line per subject."""
    machine = (
        f"{stats.isa}, {count_of(stats.threads, 'thread')}, model_load_ms {stats.model_load_ms:.0f}"
    )
    rows = (
        ("prompt", _prompt(stats)),
        ("answer", _answer(stats, finish_reason)),
        ("chains", _chains(stats)),
        ("read", _read(stats)),
        ("ceiling", _ceiling(stats)),
        ("memory", memory_text(stats, stats.peak_rss_bytes)),
        ("machine", machine),
    )
    return "\n".join(f"  {name:<8} {text}" for name, text in rows if text)


def stats_values(stats: Stats) -> dict[str, Any]:
    """Return every figure, those that are computed included, for JSON."""
    values = dataclasses.asdict(stats)
    return values | {name: getattr(stats, name) for name in _DERIVED}


def memory_text(held: ModelFacts | Stats, peak_rss_bytes: int) -> str:
    """Return what a loaded model holds, and the most that this process held."""
    return (
        f"weights {format_bytes(held.weights_bytes)}, KV {format_bytes(held.kv_bytes)}, "
        f"arena {format_bytes(held.arena_bytes)}, peak {format_bytes(peak_rss_bytes)}"
    )


def format_rate(tokens_per_second: float) -> str:
    """Format tokens per second, whole from a hundred on."""
    if tokens_per_second >= 100:
        return f"{format_count(round(tokens_per_second))} tok/s"
    return f"{tokens_per_second:.1f} tok/s"


def _prompt(stats: Stats) -> str:
    known = [
        f"{format_count(tokens)} from {place}"
        for tokens, place in (
            (stats.cached_tokens_memory, "memory"),
            (stats.cached_tokens_disk, "disk"),
        )
        if tokens
    ]
    return (
        f"{count_of(stats.prompt_tokens, 'token')}{''.join(f', {item}' for item in known)}, "
        f"first token after {format_duration(stats.time_to_first_token_seconds)} "
        f"({format_rate(stats.prefill_tokens_per_second)})"
    )


def _answer(stats: Stats, finish_reason: str) -> str:
    rate = format_rate(stats.decode_tokens_per_second)
    ended = _FINISHED.get(finish_reason, finish_reason)
    return f"{count_of(stats.answer_tokens, 'token')} ({rate}); {ended}"


def _chains(stats: Stats) -> str:
    """Return what guesses did; empty where there were none."""
    if not stats.proposed_tokens:
        return ""
    sources = ", ".join(
        f"{name} {counts.accepted_tokens} of {counts.proposed_tokens}"
        for name, counts in stats.guesses.items()
    )
    return (
        f"{stats.tokens_per_step:.2f} tokens per step; guesses right: {sources} "
        f"(acceptance_rate {stats.acceptance_rate:.2f}); about "
        f"{format_duration(max(0.0, stats.saved_seconds))} saved"
    )


def _read(stats: Stats) -> str:
    """Return what the answer read of the KV cache; empty where that was all."""
    if stats.attention == "exact" or not stats.kv_blocks_total:
        return ""
    share = stats.kv_blocks_read / stats.kv_blocks_total
    widened = f", widened {format_count(stats.widened)} times" if stats.widened else ""
    return (
        f"{share:.0%} of the KV blocks ({stats.attention}), {1 - stats.skipped_mass:.1%} of the "
        f"attention{widened}; the rest through means"
    )


def _ceiling(stats: Stats) -> str:
    """Return the decode ceiling and what was reached of it; empty where nothing was counted.

    Source: `shared/design.md` section 1: a decoded token reads every weight and cached key once.
    """
    ceiling = stats.decode_ceiling_tokens_per_second
    if not ceiling:
        return ""
    reached = stats.mem_bandwidth_util
    return (
        f"{format_rate(ceiling)} = {stats.read_bandwidth_gb_per_s:.1f} GB/s / "
        f"{format_bytes(stats.bytes_per_token)} per token; "
        f"reached {reached:.0%} (mem_bandwidth_util {reached:.2f})"
    )
