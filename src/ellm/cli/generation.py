"""Answers one prompt and shows it: progress, the answer as it comes, the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ellm.cli import backend
from ellm.cli.console import Console
from ellm.cli.interrupt import stream_interruptibly
from ellm.cli.options import GenerationOptions
from ellm.cli.prompts import ContextPlan, plan_context
from ellm.cli.report import stats_block, stats_values
from ellm.cli.trace_file import TraceFile
from ellm.errors import AbortedError
from ellm.units import count_of, format_count, format_duration

if TYPE_CHECKING:
    from ellm import LLM, PromptProgress, SamplingParams, Stats

_WRITTEN = "which blocks the answer read; open it in a browser"
_NOT_WRITTEN = "not written, the answer has fewer than two tokens"


def answer_prompt(
    console: Console,
    options: GenerationOptions,
    make_prompt: Callable[[backend.ModelText], list[int]],
    *,
    default_max_tokens: int,
    stop_without_template: tuple[str, ...] = (),
    extra: Mapping[str, Any] | None = None,
    trace: TraceFile | None = None,
) -> None:
    """Find and load the model, answer a prompt and show the answer.

    The prompt is made and counted before the weights are loaded: one that does not fit is refused
    at once, and the KV cache is as large as prompt and answer need.

    Args:
        console: Where to.
        options: What the user chose.
        make_prompt: Returns the prompt's tokens.
        default_max_tokens: Length of the answer without `-n`.
        stop_without_template: Strings that end the answer of a model without chat template.
        extra: What the JSON object holds beside the answer.
        trace: A page to write of what the answer's rows read.
    """
    path = backend.find_model(options.model, console)
    model = backend.open_text(path)
    tokens = make_prompt(model)
    plan = plan_context(
        len(tokens),
        context_length=model.context_length,
        context_tokens=options.context_tokens,
        max_tokens=options.max_tokens,
        default_max_tokens=default_max_tokens,
    )
    console.note(_fitting(len(tokens), plan, options.context_tokens or model.context_length))
    stop = () if model.tokenizer.has_chat_template else stop_without_template
    params = options.sampling_params(plan.max_tokens, stop=stop)
    shown = {"model": path.name, **(extra or {})}
    with backend.load_engine(model.source, options, plan.context_tokens, console) as engine:
        tell_uncalibrated(console, options, engine)
        with_stats = not options.no_stats
        show_answer(
            console, engine, tokens, params, with_stats=with_stats, extra=shown, trace=trace
        )


def show_answer(
    console: Console,
    engine: LLM,
    prompt: list[int],
    params: SamplingParams,
    *,
    with_stats: bool,
    extra: Mapping[str, Any],
    trace: TraceFile | None = None,
) -> None:
    """Answer a prompt with a loaded model; the arguments are those of `answer_prompt`.

    Raises:
        AbortedError: The engine was told to stop by somebody else than Ctrl-C.
    """
    line = console.progress("reading")

    def progress(step: PromptProgress) -> None:
        line.update(step.done_tokens, step.total_tokens, reading_detail(step))

    text, finish_reason, stats = "", "abort", None
    answer: list[int] = []
    tracer = None if trace is None else trace.tracer(engine)
    chunks = stream_interruptibly(
        lambda: engine.stream(prompt, params, progress=progress, tracer=tracer), engine.abort
    )
    with closing(chunks):
        for chunk in chunks:
            line.clear()
            text += chunk.text
            answer += chunk.token_ids
            console.answer(chunk.text)
            if chunk.finish_reason is not None:
                finish_reason, stats = chunk.finish_reason, chunk.stats
    line.clear()
    console.answer("" if text.endswith("\n") else "\n")
    _finish(console, text, finish_reason, stats, with_stats=with_stats, extra=extra)
    if trace is not None and tracer is not None:
        written = trace.write(engine, tracer, prompt, answer)
        console.note(f"{trace.path}: {_WRITTEN if written else _NOT_WRITTEN}")
    if finish_reason == "abort":
        raise AbortedError("the answer was stopped before its end")


def reading_detail(step: PromptProgress) -> str:
    """Return how far a prompt was read, how fast, and how long the rest will take."""
    return (
        f"{format_count(step.done_tokens)} of {format_count(step.total_tokens)} tokens, "
        f"{step.tokens_per_second:.0f} tok/s, {format_duration(step.seconds_left)} left"
    )


def tell_uncalibrated(console: Console, options: GenerationOptions, engine: LLM) -> None:
    """Tell what a mode goes by where calibration has not found what this model needs."""
    from ellm.sparse.policy import PROFILED_MODES

    if options.attention not in PROFILED_MODES or engine.attention.profile is not None:
        return
    defaults = []
    if options.attention == "auto":
        defaults.append(f"sparse from {format_count(engine.attention.sparse_from_tokens)} tokens")
    if options.sparse_mass is None:
        defaults.append(f"{100 * engine.attention.mass:.3g} % of the attention")
    told = ", ".join(["conservative defaults", *defaults]) if defaults else "the same for all heads"
    command = " ".join(["ellm calibrate", *filter(None, [options.model])])
    console.note(f"not calibrated: {told}; `{command}` measures what this model needs")


def _fitting(prompt_tokens: int, plan: ContextPlan, context_length: int) -> str:
    left = " (all that is left)" if plan.shortened else ""
    return (
        f"prompt of {count_of(prompt_tokens, 'token')}, up to {format_count(plan.max_tokens)} to "
        f"answer{left}: fits the context of {format_count(context_length)}"
    )


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
