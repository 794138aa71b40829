"""`ellm calibrate --shallow`: whether drafts from a model's own first layers pay."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from ellm import __version__
from ellm.cli import backend
from ellm.cli.calibrate_inputs import Target, forget_file
from ellm.cli.calibrate_options import CalibrateOptions
from ellm.cli.console import Console
from ellm.cli.interrupt import stream_interruptibly
from ellm.cli.json_file import write_json
from ellm.cli.quality_inputs import texts_of
from ellm.cli.shallow_report import (
    ShallowReport,
    ShallowRun,
    shallow_table,
    shallow_values,
)
from ellm.errors import CapacityError, ConfigError, RequestError
from ellm.units import format_bytes

if TYPE_CHECKING:
    from ellm.calibration.exit_texts import ProbeTexts
    from ellm.config.engine import EngineConfig
    from ellm.engine.stats import ModelFacts
    from ellm.program.exit_store import ShallowExit

# Of the memory there is, for the probe: the rest is for the model.
_MOST_PROBE_SHARE = 0.5


def calibrate_shallow(
    command: tuple[str, ...], console: Console, options: CalibrateOptions, target: Target
) -> None:
    """Fit and measure exits, or show or delete what an earlier run found.

    Raises:
        EllmError: As the command says.
    """
    if options.forget:
        _forget(console, target)
        return
    if options.show:
        report = _report_of(target, _known(target, options), None)
    else:
        report = _probe(command, console, options, target)
    values = shallow_values(report)
    if console.as_json:
        console.result_object(values)
        return
    console.result(shallow_table(report))
    if options.json_path is not None:
        write_json(options.json_path, values)


def _forget(console: Console, target: Target) -> None:
    from ellm.program.exit_store import exit_path

    path = exit_path(target.described.fingerprint)
    forget_file(console, path, absent=f"{target.path.name} has no exit: nothing to forget")


def _known(target: Target, options: CalibrateOptions) -> ShallowExit:
    from ellm.program.exit_store import find_exit

    program = target.opened.program
    found = find_exit(
        target.described.fingerprint,
        num_layers=program.num_layers,
        hidden_size=program.hidden_size,
    )
    if found is None:
        command = " ".join(["ellm calibrate", *filter(None, [options.model]), "--shallow"])
        raise RequestError(f"{target.path.name} has no exit; `{command}` fits one")
    return found


def _probe(
    command: tuple[str, ...], console: Console, options: CalibrateOptions, target: Target
) -> ShallowReport:
    from ellm.calibration.exit_texts import probe_texts
    from ellm.hardware.machine import this_machine
    from ellm.program.exit_store import exit_path, save_exit

    config = options.probe_config(target.described.context_length)
    _require_memory(target, config)
    texts = probe_texts(target.opened.tokenizer, texts_of(options.text))
    console.note("fitting exits from shallow layers: about a minute")
    found, facts = _run(console, target, config, texts)
    try:
        save_exit(found)
    except OSError as error:
        path = exit_path(found.fingerprint)
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    run = ShallowRun(version=__version__, command=command, machine=this_machine(), facts=facts)
    return _report_of(target, found, run)


def _run(
    console: Console, target: Target, config: EngineConfig, texts: ProbeTexts
) -> tuple[ShallowExit, ModelFacts]:
    from ellm.calibration.exit_probe import ExitProbe

    parts = backend.load_parts(target.opened, config, console)
    line = console.progress("probing")
    probe = ExitProbe(
        parts.executor,
        texts,
        target.described.fingerprint,
        report=lambda share, what: line.update(share, 1.0, what),
    )
    try:
        with closing(stream_interruptibly(probe.results, probe.abort)) as results:
            (found,) = results
            return found, parts.facts
    finally:
        line.clear()


def _require_memory(target: Target, config: EngineConfig) -> None:
    """Check that what fitting takes has room.

    Raises:
        CapacityError: It has not.
    """
    from ellm.calibration.exit_probe import probe_bytes
    from ellm.hardware.memory import available_memory_bytes

    needed = probe_bytes(target.opened.program, config.rows_per_chunk)
    available = int(available_memory_bytes() * _MOST_PROBE_SHARE)
    if needed > available:
        raise CapacityError(
            f"fitting exits takes {format_bytes(needed)}, {format_bytes(available)} are available "
            "beside the model; a machine with more memory can fit them",
            needed=needed,
            available=available,
        )


def _report_of(target: Target, found: ShallowExit, run: ShallowRun | None) -> ShallowReport:
    from ellm.program.exit_store import exit_path

    return ShallowReport(
        model=target.path.name, exit=found, path=exit_path(found.fingerprint), run=run
    )
