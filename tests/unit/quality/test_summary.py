"""Scores are compared item by item, and only where both sides have answered."""

from __future__ import annotations

import pytest

from ellm.quality.results import TaskAnswer
from ellm.quality.summary import ALL_TASKS, length_rows, paired, score_rows


def answer(
    arm: str, score: float, index: int = 0, task: str = "a", length: int = 1024, read: int = 3
) -> TaskAnswer:
    return TaskAnswer(
        task=task,
        length_tokens=length,
        index=index,
        arm=arm,
        score=score,
        position=None,
        prompt_tokens=1000,
        expected=("x",),
        text="",
        blocks_read=read,
        blocks_total=10,
        skipped_mass=0.1,
    )


def test_only_items_that_both_answered_are_pairs() -> None:
    answers = [answer("reference", 1.0), answer("reference", 0.5, 1), answer("s", 0.0, 1)]
    ((reference, candidate),) = paired(answers, "s")
    assert (reference.score, candidate.score) == (0.5, 0.0)
    assert paired(answers, "absent") == []


def test_a_row_has_means_difference_and_how_many_are_worse() -> None:
    scores = [(1.0, 1.0), (1.0, 0.0), (0.5, 1.0), (1.0, 1.0)]
    answers = [
        each
        for index, (reference, candidate) in enumerate(scores)
        for each in (answer("reference", reference, index), answer("s", candidate, index))
    ]
    (row,) = score_rows(answers, ["s"], seed=0)
    assert (row.task, row.arm, row.n) == ("a", "s", 4)
    assert (row.reference, row.score, row.difference) == (0.875, 0.75, -0.125)
    assert (row.worse, row.better) == (1, 1)
    assert row.interval.low <= -0.125 <= row.interval.high
    assert row.interval.low >= -1.0
    assert row.worse_interval.low < 0.25 < row.worse_interval.high
    assert row.blocks_read_share == 0.3
    assert row.skipped_mass == pytest.approx(0.1)


def test_tasks_and_arms_have_rows_and_all_tasks_one_per_arm() -> None:
    answers = [
        answer(arm, score, 0, task)
        for task, reference in (("b", 1.0), ("a", 0.0))
        for arm, score in (("reference", reference), ("s", 0.0), ("t", 1.0))
    ]
    rows = score_rows(answers, ["s", "t"], seed=0)
    assert [(row.task, row.arm) for row in rows] == [
        ("b", "s"),
        ("b", "t"),
        ("a", "s"),
        ("a", "t"),
        (ALL_TASKS, "s"),
        (ALL_TASKS, "t"),
    ]
    assert [row.difference for row in rows] == [-1.0, 0.0, 0.0, 1.0, -0.5, 0.5]


def test_a_task_counts_as_much_as_another_in_the_mean_of_all() -> None:
    answers = [answer("reference", 1.0, 0, "a"), answer("s", 0.0, 0, "a")]
    for index in range(9):
        answers += [answer("reference", 1.0, index, "b"), answer("s", 1.0, index, "b")]
    row = score_rows(answers, ["s"], seed=0)[-1]
    assert (row.n, row.reference, row.score, row.difference) == (10, 1.0, 0.5, -0.5)


def test_lengths_have_rows_of_their_own() -> None:
    answers = [
        answer(arm, score, length=length)
        for length, lost in ((8192, 1.0), (1024, 0.0))
        for arm, score in (("reference", 1.0), ("s", 1.0 - lost))
    ]
    rows = length_rows(answers, ["s"], seed=0)
    assert [(row.length_tokens, row.difference) for row in rows] == [(1024, 0.0), (8192, -1.0)]


def test_blocks_nobody_counted_have_no_share() -> None:
    answers = [answer("reference", 1.0), answer("s", 1.0)]
    uncounted = [
        TaskAnswer(**{name: getattr(each, name) for name in each.__slots__} | {"blocks_total": 0})
        for each in answers
    ]
    (row,) = score_rows(uncounted, ["s"], seed=0)
    assert row.blocks_read_share is None


def test_nothing_measured_has_no_rows() -> None:
    assert score_rows([], ["s"], seed=0) == []
    assert length_rows([], ["s"], seed=0) == []
