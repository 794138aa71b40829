"""What a probe of shallow exits found, as a table for people and as JSON."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ellm.cli.tables import Cells, aligned
from ellm.units import count_of, format_count

if TYPE_CHECKING:
    from ellm.engine.stats import ModelFacts
    from ellm.hardware.machine import Machine
    from ellm.program.exit_figures import DepthFigures, ExitFigures
    from ellm.program.exit_store import ShallowExit


@dataclass(frozen=True, slots=True, kw_only=True)
class ShallowRun:
    """What the figures of a probe depend on.

    Attributes:
        version: eLLM's version.
        command: Words of the command line.
        machine: Where it ran.
        facts: Kernels and threads in use.
    """

    version: str
    command: tuple[str, ...]
    machine: Machine
    facts: ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ShallowReport:
    """What is known of drafts from a model's first layers.

    Attributes:
        model: Name of the model's file.
        exit: The exit that gains most, and the figures of all.
        path: Where it is kept.
        run: What was run to find it; None for what an earlier run found.
    """

    model: str
    exit: ShallowExit
    path: Path
    run: ShallowRun | None


def shallow_table(report: ShallowReport) -> str:
    """Return the verdict, and the figures of every exit under it."""
    figures = report.exit.figures
    chains = range(1, len(figures.step_seconds))
    gains = (f"gain of {count_of(chain, 'draft')}" for chain in chains)
    head: Cells = ("layer", "agrees", "n", "cost", "has to agree", *gains)
    rows = [_cells(figures, depth) for depth in figures.depths]
    return "\n".join(
        [
            *(f"{name:<11} {text}" for name, text in _about(report).items()),
            "",
            "Exits: agreement with the whole model on its own answers, speed over plain decoding",
            *aligned([head, *rows]),
        ]
    )


def shallow_values(report: ShallowReport) -> dict[str, Any]:
    """Return every figure, for JSON."""
    figures, run = report.exit.figures, report.run
    chains = range(1, len(figures.step_seconds))
    return {
        "model": report.model,
        "fingerprint": report.exit.fingerprint,
        "exit": str(report.path),
        "pays": report.exit.pays,
        "verdict": figures.verdict(),
        "layer": report.exit.layer,
        "num_layers": figures.num_layers,
        "chain_length": figures.best_chain(figures.best),
        "learnt_tokens": figures.learnt_tokens,
        "depth_tokens": figures.depth_tokens,
        "step_seconds": list(figures.step_seconds),
        "depths": [
            {
                **dataclasses.asdict(depth),
                "acceptance": depth.acceptance,
                "cost_ratio": figures.cost_ratio(depth),
                "needed_acceptance": figures.needed_acceptance(depth),
                "gains": [figures.gain(depth, chain) for chain in chains],
            }
            for depth in figures.depths
        ],
        "run": None if run is None else _run_values(run),
    }


def _about(report: ShallowReport) -> dict[str, str]:
    figures, run = report.exit.figures, report.run
    lines = {
        "model": report.model,
        "exit": str(report.path),
        "shallow": figures.verdict(),
        "learnt from": f"{format_count(figures.learnt_tokens)} tokens",
        "steps": _steps(figures),
    }
    if run is None:
        return lines
    machine, facts = run.machine, run.facts
    return lines | {
        "machine": f"{machine.cpu}, {count_of(machine.usable_cpus, 'CPU')} to use",
        "engine": f"eLLM {run.version}, {facts.isa}, {count_of(facts.threads, 'thread')}",
        "command": shlex.join(run.command),
    }


def _steps(figures: ExitFigures) -> str:
    one, *more = figures.step_seconds
    ratios = ", ".join(f"{seconds / one:.2f}" for seconds in more)
    return (
        f"{1e3 * one:.3g} ms for one row at {format_count(figures.depth_tokens)} tokens; of 2 to "
        f"{len(figures.step_seconds)} rows {ratios} times as long"
    )


def _cells(figures: ExitFigures, depth: DepthFigures) -> Cells:
    needed = figures.needed_acceptance(depth)
    chains = range(1, len(figures.step_seconds))
    return (
        f"{depth.layer} of {figures.num_layers}",
        f"{depth.acceptance:.1%}",
        format_count(depth.positions),
        f"{figures.cost_ratio(depth):.2f}",
        "never" if needed is None else f"{needed:.1%}",
        *(f"{figures.gain(depth, chain):.2f}" for chain in chains),
    )


def _run_values(run: ShallowRun) -> dict[str, Any]:
    return {
        "version": run.version,
        "command": list(run.command),
        "machine": {**dataclasses.asdict(run.machine), "isa": run.facts.isa},
        "threads": run.facts.threads,
    }
