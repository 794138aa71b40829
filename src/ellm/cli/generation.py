"""Runs one request and shows it: progress, the answer as it comes, the figures."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ellm.cli.console import Console
from ellm.cli.interrupt import stream_interruptibly
from ellm.cli.report import stats_block, stats_values
from ellm.errors import AbortedError
from ellm.units import format_count, format_duration

if TYPE_CHECKING:
    from ellm import LLM, PromptProgress, SamplingParams, Stats


def show_answer(
    console: Console,
    engine: LLM,
    prompt: list[int],
    params: SamplingParams,
    *,
    with_stats: bool,
    extra: Mapping[str, Any],
) -> None:
    """Answer a prompt on the console.

    Args:
        console: Where to.
        engine: The loaded model.
        prompt: Token ids.
        params: How to sample.
        with_stats: Print the block of figures at the end.
        extra: What the JSON object holds beside the answer.

    Raises:
        AbortedError: The engine was told to stop by somebody else than Ctrl-C.
    """
    line = console.progress("reading")

    def progress(step: PromptProgress) -> None:
        line.update(step.done_tokens, step.total_tokens, _reading(step))

    pieces: list[str] = []
    finish_reason, stats = "abort", None
    chunks = stream_interruptibly(
        lambda: engine.stream(prompt, params, progress=progress), engine.abort
    )
    with closing(chunks):  # type: ignore[type-var]
        for chunk in chunks:
            line.clear()
            pieces.append(chunk.text)
            if not console.as_json:
                console.answer(chunk.text)
            if chunk.finish_reason is not None:
                finish_reason, stats = chunk.finish_reason, chunk.stats
    line.clear()
    if not console.as_json and not "".join(pieces[-1:]).endswith("\n"):
        console.answer("\n")
    _finish(console, "".join(pieces), finish_reason, stats, with_stats=with_stats, extra=extra)
    if finish_reason == "abort":
        raise AbortedError("the answer was stopped before its end")


def _finish(
    console: Console,
    text: str,
    finish_reason: str,
    stats: Stats | None,
    *,
    with_stats: bool,
    extra: Mapping[str, Any],
) -> None:
    if console.as_json:
        values = None if stats is None else stats_values(stats)
        console.result_object(
            {"text": text, "finish_reason": finish_reason, **extra, "stats": values}
        )
    elif with_stats and console.talks and stats is not None:
        console.note("\n" + stats_block(stats, finish_reason))


def _reading(step: PromptProgress) -> str:
    return (
        f"{format_count(step.done_tokens)} of {format_count(step.total_tokens)} tokens, "
        f"{step.tokens_per_second:.0f} tok/s, {format_duration(step.seconds_left)} left"
    )
