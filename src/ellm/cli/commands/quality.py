"""`ellm quality`: what attention modes, KV types and quantizations do to the answers."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import typer

from ellm import __version__
from ellm.cli import backend
from ellm.cli.console import Console
from ellm.cli.interrupt import stream_interruptibly
from ellm.cli.json_file import (
    ANOTHER_FILE,
    STANDARD_OUTPUT,
    require_writable,
    write_json,
    write_whole,
)
from ellm.cli.options import takes_options
from ellm.cli.quality_inputs import QualityInputs, prepare_inputs
from ellm.cli.quality_options import QualityOptions
from ellm.cli.quality_picture import as_html, draw_svg, heat_maps
from ellm.cli.quality_progress import QualityProgressLine
from ellm.cli.quality_report import PARTIAL, QualityReport, quality_table
from ellm.cli.quality_values import quality_values
from ellm.errors import EllmError

if TYPE_CHECKING:
    from pathlib import Path

    from ellm.engine.stats import ModelFacts
    from ellm.quality.run import Phase, QualityRun
    from ellm.sparse.profile import SparseProfile


@takes_options(QualityOptions)
def quality(context: typer.Context, *, options: QualityOptions) -> None:
    """Measure what attention modes, KV types or quantizations do to the answers.

    Everything is compared with the same model's exact attention on the same prompts: the scores of
    questions with known answers, whose needles are in many places of long texts, and the
    predictions over the tails of texts. docs/quality.md says how to read the figures.
    """
    console = Console(quiet=options.quiet, as_json=options.json == STANDARD_OUTPUT)
    # Whatever can be refused is refused before the hours that loading and measuring take.
    if options.json_path is not None:
        require_writable(options.json_path)
    if options.picture is not None:
        require_writable(options.picture, advice=ANOTHER_FILE)
    inputs = prepare_inputs(console, options)
    measurement = _Measurement(console, inputs)
    try:
        measurement.run()
    except (KeyboardInterrupt, EllmError):
        if measurement.has_results:
            console.warn(PARTIAL)
            _show(console, _report(context, options, measurement, partial=True), options)
        raise
    _show(console, _report(context, options, measurement, partial=False), options)


class _Measurement:
    """Loads one model after the other, and keeps every result as soon as it is there."""

    def __init__(self, console: Console, inputs: QualityInputs) -> None:
        from ellm.quality.results import QualityResults

        self.inputs = inputs
        self.results = QualityResults()
        self.facts: ModelFacts | None = None
        self.profile: SparseProfile | None = None
        self._console = console

    @property
    def has_results(self) -> bool:
        return bool(self.results.answers or self.results.cells)

    def run(self) -> None:
        from ellm.quality.run import QualityRun

        line = QualityProgressLine(self._console)
        run = QualityRun(
            self.inputs.plan,
            self.inputs.passages,
            self.inputs.haystacks,
            self.inputs.reference.model.tokenizer,
            phases=self.inputs.phases,
            progress=line.show,
        )
        try:
            for phase in self.inputs.phases:
                self._run_phase(run, phase)
        finally:
            line.clear()

    def _run_phase(self, run: QualityRun, phase: Phase) -> None:
        side = self.inputs.side_of(phase)
        with backend.load_llm(side.model.source, side.config, self._console) as llm:
            self.facts = llm.facts
            self.profile = llm.attention.profile
            results = stream_interruptibly(partial(run.measure, llm, phase), run.abort)
            with closing(results):
                for result in results:
                    self.results.add(result)


def _report(
    context: typer.Context, options: QualityOptions, measurement: _Measurement, *, partial: bool
) -> QualityReport:
    from ellm.engine.stats import NUMPY_FACTS
    from ellm.hardware.machine import this_machine

    inputs = measurement.inputs
    facts = measurement.facts or NUMPY_FACTS
    return QualityReport(
        version=__version__,
        command=context.obj,
        model=inputs.reference.path.name,
        candidate_model=inputs.candidate.path.name,
        reference_kv_type=options.kv_type_of_reference,
        kv_type=options.kv_type,
        texts=inputs.texts,
        machine=this_machine(),
        isa=facts.isa,
        threads=facts.threads,
        plan=inputs.plan,
        results=measurement.results,
        partial=partial,
        notes=inputs.notes,
        profile=measurement.profile,
    )


def _show(console: Console, report: QualityReport, options: QualityOptions) -> None:
    values = quality_values(report)
    if console.as_json:
        console.result_object(values)
    else:
        # The tables first: a disk that is full by now does not take the figures with it.
        console.result(quality_table(report))
    if options.json_path is not None:
        write_json(options.json_path, values)
    if options.picture is not None:
        _draw(options.picture, report)


def _draw(path: Path, report: QualityReport) -> None:
    from ellm.quality.plan import REFERENCE

    title = f"{report.candidate_model}, {report.kv_type} KV"
    if report.partial:
        title += " (partial)"
    maps = heat_maps(report.results.answers, [REFERENCE.name, *report.arms])
    picture = draw_svg(maps, report.plan.lengths_tokens, title)
    text = as_html(picture, title) if path.suffix.lower() == ".html" else picture
    write_whole(path, text, advice=ANOTHER_FILE)
