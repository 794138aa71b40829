"""What the answers come to: scores of candidates beside those of the reference, pair by pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ellm.quality.intervals import Interval, bootstrap_mean, wilson
from ellm.quality.plan import REFERENCE
from ellm.quality.results import TaskAnswer

ALL_TASKS = "all tasks"

Pair = tuple[TaskAnswer, TaskAnswer]
"""The reference's answer and the candidate's, to one item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """Scores of one candidate in one task, or in all.

    Attributes:
        task: The task's name, or "all tasks".
        length_tokens: One length, or None for all together.
        arm: The candidate.
        n: Items that both answered.
        reference: Mean score of the reference, 0..1.
        score: Mean score of the candidate.
        difference: What the candidate's is higher by.
        interval: 95 % interval of the difference, by paired bootstrap.
        worse: Items with a lower score than the reference's.
        worse_interval: 95 % interval of their share.
        better: Items with a higher score.
        blocks_read_share: Share of the KV blocks that were read in full; None if nobody chose.
        skipped_mass: Mean share of the attention in the others.
    """

    task: str
    length_tokens: int | None
    arm: str
    n: int
    reference: float
    score: float
    difference: float
    interval: Interval
    worse: int
    worse_interval: Interval
    better: int
    blocks_read_share: float | None
    skipped_mass: float


def paired(answers: Iterable[TaskAnswer], arm: str) -> list[Pair]:
    """Return the items that both the reference and `arm` answered."""
    answers = list(answers)
    references = {answer.item: answer for answer in answers if answer.arm == REFERENCE.name}
    return [
        (references[answer.item], answer)
        for answer in answers
        if answer.arm == arm and answer.item in references
    ]


def score_rows(answers: Sequence[TaskAnswer], arms: Sequence[str], *, seed: int) -> list[ScoreRow]:
    """Return a row for each task and arm, in the tasks' order, then one for all tasks per arm."""
    tasks = list(dict.fromkeys(answer.task for answer in answers))
    pairs = {arm: paired(answers, arm) for arm in arms}
    rows = []
    for task in tasks:
        for arm in arms:
            chosen = [pair for pair in pairs[arm] if pair[0].task == task]
            rows += _row(task, None, arm, chosen, seed)
    if len(tasks) > 1:
        for arm in arms:
            rows += _row(ALL_TASKS, None, arm, pairs[arm], seed)
    return rows


def length_rows(answers: Sequence[TaskAnswer], arms: Sequence[str], *, seed: int) -> list[ScoreRow]:
    """Return a row over all tasks for each length and arm."""
    lengths = sorted({answer.length_tokens for answer in answers})
    rows = []
    for length in lengths:
        for arm in arms:
            chosen = [p for p in paired(answers, arm) if p[0].length_tokens == length]
            rows += _row(ALL_TASKS, length, arm, chosen, seed)
    return rows


def _row(
    task: str, length_tokens: int | None, arm: str, pairs: Sequence[Pair], seed: int
) -> list[ScoreRow]:
    """Return the row of these pairs, or nothing without any."""
    if not pairs:
        return []
    strata: dict[str, list[float]] = {}
    for reference, candidate in pairs:
        strata.setdefault(reference.task, []).append(candidate.score - reference.score)
    differences = [difference for stratum in strata.values() for difference in stratum]
    worse = sum(difference < 0 for difference in differences)
    total = sum(candidate.blocks_total for _, candidate in pairs)
    read = sum(candidate.blocks_read for _, candidate in pairs)
    return [
        ScoreRow(
            task=task,
            length_tokens=length_tokens,
            arm=arm,
            n=len(pairs),
            reference=_mean_of_tasks(reference for reference, _ in pairs),
            score=_mean_of_tasks(candidate for _, candidate in pairs),
            difference=float(np.mean([np.mean(stratum) for stratum in strata.values()])),
            interval=bootstrap_mean(
                [np.array(stratum, dtype=np.float64) for stratum in strata.values()], seed=seed
            ),
            worse=worse,
            worse_interval=wilson(worse, len(pairs)),
            better=sum(difference > 0 for difference in differences),
            blocks_read_share=read / total if total else None,
            skipped_mass=float(np.mean([candidate.skipped_mass for _, candidate in pairs])),
        )
    ]


def _mean_of_tasks(answers: Iterable[TaskAnswer]) -> float:
    """Return the mean of the tasks' means: a task counts as much as another."""
    scores: dict[str, list[float]] = {}
    for answer in answers:
        scores.setdefault(answer.task, []).append(answer.score)
    return float(np.mean([np.mean(found) for found in scores.values()]))
