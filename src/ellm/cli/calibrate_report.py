"""What a calibration found, as a table for people and as JSON."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ellm.cli.tables import Cells, aligned
from ellm.units import count_of, format_count

if TYPE_CHECKING:
    from ellm.calibration.cost import StepTimes
    from ellm.calibration.plan import CalibrationPlan
    from ellm.engine.stats import ModelFacts
    from ellm.hardware.machine import Machine
    from ellm.sparse.profile import HeldOutFigures, SparseProfile

GOAL_MISSED = (
    "no share of the attention that was tried is near enough to exact attention on every text; "
    "the largest is used"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What the figures of a run depend on.

    Attributes:
        version: eLLM's version.
        command: Words of the command line.
        machine: Where it ran.
        facts: Kernels and threads in use.
        plan: What was run.
        times: Of steps at the depth of the texts.
        learnt_met: Whether predictions were near enough on the texts that were learnt from.
        notes: What was left out, and why.
    """

    version: str
    command: tuple[str, ...]
    machine: Machine
    facts: ModelFacts
    plan: CalibrationPlan
    times: StepTimes
    learnt_met: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReport:
    """What is known of a model's attention.

    Attributes:
        model: Name of the model's file.
        profile: What was found.
        path: Where that is kept.
        choosing_heads: KV heads that have blocks to choose from.
        context_length: Tokens the model was trained to read.
        run: What was run to find it; None for what an earlier run found.
    """

    model: str
    profile: SparseProfile
    path: Path
    choosing_heads: int
    context_length: int
    run: Circumstances | None

    @property
    def sparse_from_tokens(self) -> int | None:
        """Depth from which on sparse steps are faster; None where they are not."""
        found = self.profile.sparse_from_tokens
        return found if found < self.context_length else None

    @property
    def goal_met(self) -> bool:
        """Whether predictions were near enough on every held-out text."""
        from ellm.calibration.learning import meets

        return all(meets(found, self.profile.max_kl) for found in self.profile.held_out)


def calibration_table(report: CalibrationReport) -> str:
    """Return the figures of the held-out texts, with what was chosen above them."""
    lines = [f"{name:<11} {text}" for name, text in _about(report).items()]
    head: Cells = ("text", "depth", "n", "mean KL", "p99 KL", "same top", "KV read")
    rows = [_cells(found) for found in report.profile.held_out]
    return "\n".join(
        [
            *lines,
            "",
            "Predictions on texts that it has not learnt from: KL(exact || sparse) in nats",
            *aligned([head, *rows]),
        ]
    )


def calibration_values(report: CalibrationReport) -> dict[str, Any]:
    """Return every figure, for JSON."""
    profile = report.profile
    return {
        "model": report.model,
        "fingerprint": profile.fingerprint,
        "profile": str(report.path),
        "mass": profile.mass,
        "max_kl": profile.max_kl,
        "goal_met": report.goal_met,
        "sparse_from_tokens": report.sparse_from_tokens,
        "kv_heads": {
            "choosing": report.choosing_heads,
            "dense": profile.dense_heads,
            "streaming": profile.streaming_heads,
        },
        "held_out": [dataclasses.asdict(found) for found in profile.held_out],
        "run": None if report.run is None else _run_values(report.run),
    }


def _about(report: CalibrationReport) -> dict[str, str]:
    profile, run = report.profile, report.run
    lines = {
        "model": report.model,
        "profile": str(report.path),
        "goal": f"mean KL at most {profile.max_kl:g}: {_met(report)}",
        "reads": f"the blocks that hold {profile.mass:.0%} of the attention",
        "heads": f"{count_of(report.choosing_heads, 'KV head')}: {profile.dense_heads} read "
        f"everything, {profile.streaming_heads} the first block and the window alone",
        "sparse from": _sparse_from(report),
    }
    if run is None:
        return lines
    lines["steps"] = _steps(run.times)
    lines |= {f"note {i}": note for i, note in enumerate(run.notes, 1)}
    machine, facts = run.machine, run.facts
    return lines | {
        "machine": f"{machine.cpu}, {count_of(machine.usable_cpus, 'CPU')} to use",
        "engine": f"eLLM {run.version}, {facts.isa}, {count_of(facts.threads, 'thread')}",
        "command": shlex.join(run.command),
    }


def _met(report: CalibrationReport) -> str:
    if not report.goal_met:
        return "not met"
    if report.run is not None and not report.run.learnt_met:
        return "met, but not on the texts that were learnt from"
    return "met"


def _sparse_from(report: CalibrationReport) -> str:
    found = report.sparse_from_tokens
    if found is None:
        return "never: within the model's context sparse steps are not 5 % faster on this machine"
    return f"{format_count(found)} tokens on: there sparse steps are 5 % faster on this machine"


def _steps(times: StepTimes) -> str:
    exact, sparse = 1e3 * times.exact_seconds, 1e3 * times.sparse_seconds
    depth = format_count(times.depth_tokens)
    return f"{exact:.3g} ms exact, {sparse:.3g} ms sparse at {depth} tokens"


def _cells(found: HeldOutFigures) -> Cells:
    return (
        found.text,
        format_count(found.length_tokens),
        format_count(found.positions),
        f"{found.mean_kl:.2e}",
        f"{found.p99_kl:.2e}",
        f"{found.same_top:.1%}",
        f"{found.blocks_read_share:.0%}",
    )


def _run_values(run: Circumstances) -> dict[str, Any]:
    return {
        "version": run.version,
        "command": list(run.command),
        "machine": {**dataclasses.asdict(run.machine), "isa": run.facts.isa},
        "threads": run.facts.threads,
        **dataclasses.asdict(run.plan),
        **dataclasses.asdict(run.times),
        "learnt_met": run.learnt_met,
        "notes": list(run.notes),
    }
