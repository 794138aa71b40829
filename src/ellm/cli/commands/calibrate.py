"""`ellm calibrate`: learns what a model's sparse attention needs."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import typer

from ellm import __version__
from ellm.cli import backend
from ellm.cli.calibrate_inputs import (
    CalibrationInputs,
    Target,
    find_target,
    forget_file,
    prepare_inputs,
)
from ellm.cli.calibrate_options import CalibrateOptions
from ellm.cli.calibrate_report import (
    GOAL_MISSED,
    CalibrationReport,
    Circumstances,
    calibration_table,
    calibration_values,
)
from ellm.cli.calibrate_shallow import calibrate_shallow
from ellm.cli.console import Console
from ellm.cli.interrupt import stream_interruptibly
from ellm.cli.json_file import STANDARD_OUTPUT, require_writable, write_json
from ellm.cli.options import takes_options
from ellm.cli.quality_progress import QualityProgressLine
from ellm.errors import ConfigError, EllmError, RequestError
from ellm.units import format_count

if TYPE_CHECKING:
    from ellm.calibration.run import Calibration
    from ellm.engine.stats import ModelFacts
    from ellm.sparse.profile import SparseProfile


@takes_options(CalibrateOptions)
def calibrate(context: typer.Context, *, options: CalibrateOptions) -> None:
    """Learn what --attention sparse and auto use of a model, on local text.

    Takes minutes; after Ctrl-C it goes on where it stopped. What it finds is kept in the cache and
    used from then on wherever the model is loaded. The figures are those of texts that it has not
    learnt from. docs/calibration.md says how to read them, and those of --shallow.
    """
    console = Console(quiet=options.quiet, as_json=options.json == STANDARD_OUTPUT)
    # Whatever can be refused is refused before the minutes that it takes.
    if options.json_path is not None:
        require_writable(options.json_path)
    target = find_target(console, options)
    if options.shallow:
        calibrate_shallow(context.obj, console, options, target)
        return
    if options.forget:
        _forget(console, target)
        return
    if options.show:
        report = _report_of(target, _known(target, options), None)
    else:
        report = _calibrate(context, console, options, target)
    _show(console, report, options)


def _forget(console: Console, target: Target) -> None:
    import shutil

    from ellm.sparse.profile import profile_path

    path = profile_path(target.described.fingerprint)
    shutil.rmtree(path.with_suffix(".part"), ignore_errors=True)
    forget_file(console, path, absent=f"{target.path.name} is not calibrated: nothing to forget")


def _known(target: Target, options: CalibrateOptions) -> SparseProfile:
    profile = target.find_profile()
    if profile is None:
        command = " ".join(["ellm calibrate", *filter(None, [options.model])])
        raise RequestError(f"{target.path.name} is not calibrated; `{command}` does that")
    return profile


def _calibrate(
    context: typer.Context, console: Console, options: CalibrateOptions, target: Target
) -> CalibrationReport:
    from ellm.hardware.machine import this_machine
    from ellm.sparse.profile import profile_path, save_profile

    inputs = prepare_inputs(console, options, target)
    found, facts = _run(console, options, target, inputs)
    try:
        save_profile(found.profile)
    except OSError as error:
        path = profile_path(found.profile.fingerprint)
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    inputs.parts.delete()
    if not (found.learnt_met and found.checked_met):
        console.warn(GOAL_MISSED)
    run = Circumstances(
        version=__version__,
        command=context.obj,
        machine=this_machine(),
        facts=facts,
        plan=inputs.plan,
        times=found.times,
        learnt_met=found.learnt_met,
        notes=inputs.texts.notes,
    )
    return _report_of(target, found.profile, run)


def _run(
    console: Console, options: CalibrateOptions, target: Target, inputs: CalibrationInputs
) -> tuple[Calibration, ModelFacts]:
    from ellm.calibration.run import CalibrationRun

    line = QualityProgressLine(console, label="calibrating", jobs="texts")
    run = CalibrationRun(
        inputs.plan,
        inputs.texts,
        target.described,
        parts=inputs.parts,
        kept=inputs.kept,
        progress=line.show,
    )
    config = options.engine_config(inputs.plan)
    try:
        with (
            backend.load_llm(target.opened, config, console) as llm,
            closing(stream_interruptibly(partial(run.results, llm), run.abort)) as results,
        ):
            (found,) = results
            return found, llm.facts
    except (KeyboardInterrupt, EllmError):
        line.clear()
        if run.num_finished:
            console.warn(
                f"{format_count(run.num_finished)} of {format_count(inputs.num_texts)} texts are "
                "finished and kept: the same command goes on from there"
            )
        raise
    finally:
        line.clear()


def _report_of(
    target: Target, profile: SparseProfile, run: Circumstances | None
) -> CalibrationReport:
    from ellm.sparse.profile import profile_path

    return CalibrationReport(
        model=target.path.name,
        profile=profile,
        path=profile_path(profile.fingerprint),
        choosing_heads=target.described.shape.choosing_heads,
        context_length=target.described.context_length,
        run=run,
    )


def _show(console: Console, report: CalibrationReport, options: CalibrateOptions) -> None:
    values = calibration_values(report)
    if console.as_json:
        console.result_object(values)
        return
    console.result(calibration_table(report))
    if options.json_path is not None:
        write_json(options.json_path, values)
