"""The figures of a measurement of quality, and every answer, for JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ellm.cli.quality_report import FidelityRow, QualityReport

if TYPE_CHECKING:
    from ellm.quality.intervals import Interval
    from ellm.quality.plan import Arm
    from ellm.quality.results import TaskAnswer
    from ellm.quality.summary import ScoreRow


def quality_values(report: QualityReport) -> dict[str, Any]:
    """Return every figure; scores and shares are 0..1, intervals [low, high] at 95 %.

    The mode of the reference's answers is "reference".
    """
    plan = report.plan
    return {
        "version": report.version,
        "command": list(report.command),
        "partial": report.partial,
        "model": report.model,
        "candidate_model": report.candidate_model,
        "reference_kv_type": report.reference_kv_type,
        "kv_type": report.kv_type,
        "modes": {arm.name: _mode_values(report, arm) for arm in plan.candidates},
        "machine": {**dataclasses.asdict(report.machine), "isa": report.isa},
        "threads": report.threads,
        "lengths_tokens": list(plan.lengths_tokens),
        "tasks": list(plan.tasks),
        "samples": plan.samples,
        "seed": plan.seed,
        "tail_tokens": plan.tail_tokens if plan.fidelity else None,
        "texts": list(report.texts),
        "notes": list(report.notes),
        "scores": [_score_values(row) for row in report.task_rows()],
        "scores_by_length": [_score_values(row) for row in report.length_rows()],
        "fidelity": [_fidelity_values(row) for row in report.fidelity_rows()],
        "answers": [_answer_values(answer) for answer in report.results.answers],
    }


def _mode_values(report: QualityReport, arm: Arm) -> dict[str, Any]:
    """Return a mode with the mass that it read, which calibration may have chosen."""
    values = dataclasses.asdict(arm.attention)
    if arm.attention.mode != "exact":
        values["mass"] = report.policy_of(arm).mass
    return values


def _score_values(row: ScoreRow) -> dict[str, Any]:
    return {
        **_named(dataclasses.asdict(row)),
        "interval": _pair(row.interval),
        "worse_interval": _pair(row.worse_interval),
    }


def _fidelity_values(row: FidelityRow) -> dict[str, Any]:
    return {
        "text": row.text,
        "length_tokens": row.length_tokens,
        "part": row.part,
        "mode": row.arm,
        **dataclasses.asdict(row.figures),
        "same_top_interval": _pair(row.figures.same_top_interval),
    }


def _answer_values(answer: TaskAnswer) -> dict[str, Any]:
    return {**_named(dataclasses.asdict(answer)), "expected": list(answer.expected)}


def _named(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with an arm under the word that users know: its mode."""
    return {"mode" if name == "arm" else name: value for name, value in values.items()}


def _pair(interval: Interval) -> list[float]:
    return [interval.low, interval.high]
