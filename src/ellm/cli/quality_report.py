"""The figures of a measurement of quality, as tables for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ellm.cli.tables import Cells, aligned
from ellm.units import count_of, format_count

if TYPE_CHECKING:
    from ellm.hardware.machine import Machine
    from ellm.quality.fidelity import FidelityCell, FidelityFigures
    from ellm.quality.intervals import Interval
    from ellm.quality.plan import Arm, QualityPlan
    from ellm.quality.results import QualityResults
    from ellm.quality.summary import ScoreRow
    from ellm.sparse.policy import AttentionPolicy
    from ellm.sparse.profile import SparseProfile

PARTIAL = "stopped before the end: these figures are partial"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """Everything that was measured, and what it depends on.

    Attributes:
        version: eLLM's version.
        command: Words of the command line.
        model: Name of the reference's file.
        candidate_model: Name of the candidates' file.
        reference_kv_type: Storage of the reference's keys and values.
        kv_type: Storage of the candidates'.
        texts: Names of the texts.
        machine: Where it ran.
        isa: Kernels in use, or None if no model was loaded.
        threads: Threads in use.
        plan: What was to be measured.
        results: What was measured.
        partial: Whether it was stopped before the end.
        notes: What was left out, and why.
        profile: What calibration found about the candidates' attention, if they were calibrated.
    """

    version: str
    command: tuple[str, ...]
    model: str
    candidate_model: str
    reference_kv_type: str
    kv_type: str
    texts: tuple[str, ...]
    machine: Machine
    isa: str
    threads: int
    plan: QualityPlan
    results: QualityResults
    partial: bool
    notes: tuple[str, ...]
    profile: SparseProfile | None

    def policy_of(self, arm: Arm) -> AttentionPolicy:
        """Return what a candidate's rows read."""
        from ellm.sparse.policy import AttentionPolicy

        return AttentionPolicy(arm.attention, self.profile)

    @property
    def arms(self) -> list[str]:
        """Names of the candidates."""
        return [arm.name for arm in self.plan.candidates]

    def task_rows(self) -> list[ScoreRow]:
        """Return the scores by task."""
        from ellm.quality.summary import score_rows

        return score_rows(self.results.answers, self.arms, seed=self.plan.seed)

    def length_rows(self) -> list[ScoreRow]:
        """Return the scores of all tasks by length."""
        from ellm.quality.summary import length_rows

        return length_rows(self.results.answers, self.arms, seed=self.plan.seed)

    def fidelity_rows(self) -> Iterator[FidelityRow]:
        """Yield the figures by text, length, part and candidate, then those of all texts."""
        from ellm.quality.fidelity import WHOLE_TAIL, figures

        cells = self.results.cells
        groups: dict[tuple[str, int], list[FidelityCell]] = {}
        for cell in cells:
            groups.setdefault((cell.text, cell.length_tokens), []).append(cell)
        for (text, length), group in groups.items():
            for part in group[0].parts:
                for cell in group:
                    found = figures([cell], part)
                    if found is not None:
                        yield FidelityRow(text, length, part, cell.arm, found)
        for arm in self.arms if len(groups) > 1 else ():
            found = figures([cell for cell in cells if cell.arm == arm])
            if found is not None:
                yield FidelityRow("all texts", None, WHOLE_TAIL, arm, found)


@dataclass(frozen=True, slots=True)
class FidelityRow:
    """Figures of one candidate over a part of one tail, or over all tails."""

    text: str
    length_tokens: int | None
    part: str
    arm: str
    figures: FidelityFigures


def quality_table(report: QualityReport) -> str:
    """Return the tables, with what the figures depend on above them."""
    lines = [f"{name:<10} {text}" for name, text in _about(report).items()]
    lines += [f"{'note':<10} {note}" for note in report.notes]
    if report.partial:
        lines += ["", PARTIAL]
    if report.results.answers:
        lines += ["", *_score_tables(report)]
    if report.results.cells:
        lines += ["", *_fidelity_table(report)]
    return "\n".join(lines)


def attention_text(policy: AttentionPolicy) -> str:
    """Return a mode with its settings: "sparse (mass 0.95, at most 2,048 tokens)"."""
    from ellm.sparse.policy import PROFILED_MODES

    attention = policy.config
    if attention.mode == "exact":
        return "exact"
    most = "" if attention.tokens is None else f", at most {format_count(attention.tokens)} tokens"
    calibrated = ", calibrated" if policy.profile and attention.mode in PROFILED_MODES else ""
    return f"{attention.mode} (mass {policy.mass:g}{most}{calibrated})"


def _about(report: QualityReport) -> dict[str, str]:
    plan, machine = report.plan, report.machine
    lengths = ", ".join(map(format_count, plan.lengths_tokens))
    work = []
    if plan.tasks:
        samples = count_of(plan.samples, "sample")
        tasks = count_of(len(plan.tasks), "task")
        work.append(f"{samples} of each of {tasks}, seed {plan.seed}")
    if plan.fidelity:
        work.append(f"tails of {count_of(plan.tail_tokens, 'token')}")
    return {
        "reference": f"{report.model}, {report.reference_kv_type} KV, exact attention",
        "candidates": f"{report.candidate_model}, {report.kv_type} KV, attention "
        + ", ".join(attention_text(report.policy_of(arm)) for arm in plan.candidates),
        "prompts": f"{lengths} tokens; {'; '.join(work)}",
        "texts": ", ".join(report.texts),
        "machine": f"{machine.cpu}, {count_of(machine.usable_cpus, 'CPU')} to use",
        "engine": f"eLLM {report.version}, {report.isa}, {count_of(report.threads, 'thread')}",
        "command": shlex.join(report.command),
    }


def _score_tables(report: QualityReport) -> list[str]:
    lines = [
        "Answers: points of 100 for the expected strings found; differences and shares with 95 % "
        "intervals",
        *aligned(
            [
                ("task", "mode", "n", "reference", "score", "difference", "worse", "KV read"),
                *(
                    (row.task, row.arm, format_count(row.n), *_scores(row))
                    for row in report.task_rows()
                ),
            ]
        ),
    ]
    by_length = report.length_rows()
    if len({row.length_tokens for row in by_length}) > 1:
        head = ("length", "mode", "n", "reference", "score", "difference", "worse", "KV read")
        rows = [
            (format_count(row.length_tokens or 0), row.arm, format_count(row.n), *_scores(row))
            for row in by_length
        ]
        lines += ["", "All tasks by length", *aligned([head, *rows])]
    return lines


def _scores(row: ScoreRow) -> Cells:
    low, high = row.interval.low * 100, row.interval.high * 100
    return (
        f"{row.reference * 100:.1f}",
        f"{row.score * 100:.1f}",
        f"{row.difference * 100:+.1f} ({low:+.1f}..{high:+.1f})",
        f"{row.worse} ({_percent(row.worse_interval)})",
        _share(row.blocks_read_share),
    )


def _fidelity_table(report: QualityReport) -> list[str]:
    from ellm.quality.fidelity import SURE_MARGIN

    head: Cells = (
        *("text", "length", "part", "mode", "n", "mean KL", "p99 KL", "max KL"),
        *("same top", "sure, same top", "NLL", "KV read"),
    )
    rows = [
        (
            row.text,
            "" if row.length_tokens is None else format_count(row.length_tokens),
            row.part,
            row.arm,
            *_fidelity_cells(row.figures),
        )
        for row in report.fidelity_rows()
    ]
    return [
        "Predictions over the tails: KL(reference || candidate) in nats; likeliest token the same, "
        "with 95 % interval,",
        f"and where the reference is sure (margin above {SURE_MARGIN}); change of the text's "
        "negative log-likelihood per token",
        *aligned([head, *rows]),
    ]


def _fidelity_cells(found: FidelityFigures) -> Cells:
    return (
        format_count(found.n),
        f"{found.mean_kl:.2e}",
        f"{found.p99_kl:.2e}",
        f"{found.max_kl:.2e}",
        f"{found.same_top:.1%} ({_percent(found.same_top_interval)})",
        f"{found.sure_same_top:.1%} of {format_count(found.sure)}" if found.sure else "none sure",
        f"{found.nll_change:+.4f}",
        _share(found.blocks_read_share),
    )


def _share(blocks_read_share: float | None) -> str:
    return "all" if blocks_read_share is None else f"{blocks_read_share:.0%}"


def _percent(interval: Interval) -> str:
    return f"{interval.low * 100:.0f}..{interval.high * 100:.0f} %"
