"""`ellm bench`: how fast a model is on this machine, by depth and by rows of a step."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import typer

from ellm import __version__
from ellm.cli import backend
from ellm.cli.bench_options import BenchOptions
from ellm.cli.bench_progress import BenchProgress
from ellm.cli.bench_report import BenchReport, bench_table, bench_values
from ellm.cli.bench_tokens import random_tokens, read_text, text_tokens
from ellm.cli.console import Console
from ellm.cli.interrupt import stream_interruptibly
from ellm.cli.json_file import STANDARD_OUTPUT, require_writable, write_json
from ellm.cli.options import takes_options
from ellm.config.benchmark import BenchmarkPlan
from ellm.units import count_of

if TYPE_CHECKING:
    from ellm.engine.benchmark_outputs import DepthResult
    from ellm.engine.parts import LoadedModel
    from ellm.program.executor import Tokens


@takes_options(BenchOptions)
def bench(context: typer.Context, *, options: BenchOptions) -> None:
    """Measure a model on this machine, by depth and by rows of a step.

    One text is read from an empty cache. At each depth tokens are decoded, and steps of several
    rows are timed, such as verify draft tokens. The share of the read bandwidth can exceed 100 %
    where a small model stays in the CPU's cache.
    """
    from ellm.hardware.bandwidth import read_bandwidth_gb_per_s
    from ellm.hardware.machine import this_machine

    console = Console(quiet=options.quiet, as_json=options.json == STANDARD_OUTPUT)
    # Whatever can be refused is refused before the minutes that loading and measuring take.
    if options.json_path is not None:
        require_writable(options.json_path)
    text = None if options.text is None else read_text(options.text)
    path = backend.find_model(options.model, console)
    model = backend.open_text(path)
    plan = options.plan(model.context_length)
    tokens = _tokens(model, text, plan)
    console.note(_announcement(plan, random=text is None))
    machine = this_machine()
    parts = backend.load_parts(model.source, options.engine_config(plan), console)
    results = _measure(console, parts, tokens, plan)
    report = BenchReport(
        version=__version__,
        command=context.obj,
        model=path.name,
        text=None if options.text is None else str(options.text),
        machine=machine,
        facts=parts.facts,
        kv_type=options.kv_type,
        plan=plan,
        read_bandwidth_gb_per_s=read_bandwidth_gb_per_s(parts.facts.threads),
        depths=results,
    )
    _show(console, report, options)


def _tokens(model: backend.ModelText, text: str | None, plan: BenchmarkPlan) -> Tokens:
    count = plan.depths_tokens[-1]
    if text is None:
        return random_tokens(model.tokenizer, count)
    return text_tokens(model.tokenizer, text, count)


def _announcement(plan: BenchmarkPlan, *, random: bool) -> str:
    kind = "random token" if random else "token"
    depths = ", ".join(map(str, plan.depths_tokens))
    return f"reading {count_of(plan.depths_tokens[-1], kind)}, measuring at {depths}"


def _measure(
    console: Console, parts: LoadedModel, tokens: Tokens, plan: BenchmarkPlan
) -> tuple[DepthResult, ...]:
    from ellm.engine.benchmark import Benchmark

    progress = BenchProgress(console)
    benchmark = Benchmark(
        parts.executor,
        tokens,
        plan,
        bytes_per_token=parts.facts.bytes_per_token,
        bytes_saved=parts.facts.bytes_saved,
        profile=parts.profile,
        progress=progress.show,
    )
    try:
        with closing(stream_interruptibly(benchmark.results, benchmark.abort)) as results:
            return tuple(results)
    finally:
        progress.clear()


def _show(console: Console, report: BenchReport, options: BenchOptions) -> None:
    values = bench_values(report)
    if console.as_json:
        console.result_object(values)
        return
    # The table first: a disk that is full by now does not take the figures with it.
    console.result(bench_table(report))
    if options.json_path is not None:
        write_json(options.json_path, values)
