"""Texts come in order, each is kept when it is finished, and the profile is made of all of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ellm.calibration import run as run_module
from ellm.calibration.cost import StepTimes
from ellm.calibration.parts import PartFiles
from ellm.calibration.plan import MASSES, CalibrationPlan
from ellm.calibration.run import CalibratedModel, Calibration, CalibrationRun
from ellm.calibration.texts import CalibrationTexts
from ellm.errors import AbortedError, NativeError
from ellm.program.executor import ChoiceRule
from ellm.quality.fidelity import Passage
from ellm.quality.work import QualityProgress

from .findings import SHAPE, figures, findings

PLAN = CalibrationPlan(length_tokens=1024, tail_tokens=8)
MODEL = CalibratedModel(fingerprint="f" * 32, shape=SHAPE, context_length=32_768)
TIMES = StepTimes(
    depth_tokens=1024, shallow_seconds=0.010, exact_seconds=0.020, sparse_seconds=0.012
)


def passage(name: str) -> Passage:
    return Passage(
        text=name,
        length_tokens=1024,
        prompt=[1] * 1024,
        tail=[2] * 8,
        following=[3] * 8,
        parts={},
    )


TEXTS = CalibrationTexts(
    learning=(passage("a"), passage("b")), held_out=(passage("c"), passage("d")), notes=()
)


@dataclass
class Stage:
    """An engine that does nothing, and what each text shows: the first mass that is near enough."""

    near_from: dict[str, float] = field(default_factory=lambda: dict.fromkeys("abcd", 0.0))
    calls: list[str] = field(default_factory=list)
    rules: dict[str, list[ChoiceRule]] = field(default_factory=dict)
    timed: list[tuple[str, ChoiceRule]] = field(default_factory=list)
    before: Callable[[str], None] = lambda _call: None
    aborted: bool = False

    @contextmanager
    def replay(self, capacity_tokens: int) -> Iterator[Stage]:
        assert capacity_tokens == PLAN.context_tokens
        yield self

    def abort(self) -> None:
        self.aborted = True

    def read(self, tokens: Sequence[int], on_read: Callable[[int], None]) -> None:
        self.note("read")
        on_read(len(tokens) // 2)
        on_read(len(tokens))

    def note(self, call: str) -> None:
        self.calls.append(call)
        self.before(call)

    def observe(
        self, _replay: object, tail: Sequence[int], position: int, shape: object, tick: Any
    ) -> Any:
        assert (len(tail), position, shape) == (8, 1024, SHAPE)
        self.note("observe")
        tick()
        return [np.zeros(3, np.float32)] * 8, findings(scale=1.1, read=0.75).observations

    def figures(
        self, _replay: object, text: Passage, exact: Sequence[Any], rule: ChoiceRule, tick: Any
    ) -> Any:
        assert len(exact) == 8
        self.note(f"{text.text} {rule.mass:g}")
        self.rules.setdefault(text.text, []).append(rule)
        tick()
        near = rule.mass >= self.near_from[text.text]
        return figures(0.001 if near else 0.01, text=f"{text.text} by {rule.mass:g}")

    def feed(self, _replay: object, _text: Passage, rule: object, _log: object, tick: Any) -> Any:
        assert rule is None
        self.note("exact")
        for _ in range(8):
            tick()
            yield np.zeros(3, np.float32)

    def time_steps(
        self, _replay: object, text: Passage, rule: ChoiceRule, _clock: object, tick: Any
    ) -> StepTimes:
        self.note("time")
        self.timed.append((text.text, rule))
        tick()
        return TIMES


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    monkeypatch.setenv("ELLM_CACHE", str(tmp_path))
    stage = Stage()
    for name in ("feed", "time_steps"):
        monkeypatch.setattr(run_module, name, getattr(stage, name))
    monkeypatch.setattr(run_module, "observe_tail", stage.observe)
    monkeypatch.setattr(run_module, "figures_under", stage.figures)
    return stage


def new_run(
    progress: Callable[[QualityProgress], None] = lambda _step: None,
) -> tuple[CalibrationRun, PartFiles]:
    parts = PartFiles(MODEL.fingerprint, PLAN, SHAPE, TEXTS)
    kept, note = parts.load()
    assert note is None
    return CalibrationRun(PLAN, TEXTS, MODEL, parts=parts, kept=kept, progress=progress), parts


def calibrated(stage: Stage) -> Calibration:
    (found,) = new_run()[0].results(stage)  # type: ignore[arg-type]
    return found


def test_texts_are_learnt_from_and_then_others_looked_at(stage: Stage) -> None:
    found = calibrated(stage)
    masses = [f"{mass:g}" for mass in MASSES]
    learning = [["read", "observe", *(f"{name} {mass}" for mass in masses)] for name in "ab"]
    checking = [["read", "exact", *(f"{name} {mass}" for mass in masses)] for name in "cd"]
    assert stage.calls == [*itertools.chain(*learning, *checking), "time"]
    assert (found.learnt_met, found.checked_met) == (True, True)
    profile = found.profile
    assert (profile.fingerprint, profile.mass, profile.max_kl) == ("f" * 32, 0.8, 0.002)
    assert [each.text for each in profile.held_out] == ["c by 0.8", "d by 0.8"]
    assert (profile.heads.allowances == 0).all()
    np.testing.assert_allclose(profile.heads.scales, 1.1, rtol=1e-6)
    # 0.95 (10 + 10 x) = 10 + 2 x at x = 1/15 of 512 tokens.
    assert profile.sparse_from_tokens == 1024
    assert found.times == TIMES


def test_all_heads_are_alike_while_learning_and_as_learnt_afterwards(stage: Stage) -> None:
    calibrated(stage)
    for name in "ab":
        assert [rule.heads for rule in stage.rules[name]] == [None] * len(MASSES)
    for name in "cd":
        for rule in stage.rules[name]:
            assert rule.heads is not None
            assert (rule.heads.allowances == 0).all()


def test_held_out_texts_are_looked_at_from_the_learnt_mass_on(stage: Stage) -> None:
    stage.near_from = {"a": 0.85, "b": 0.93, "c": 0.0, "d": 0.0}
    found = calibrated(stage)
    assert [rule.mass for rule in stage.rules["c"]] == [0.93, 0.95, 0.97, 0.98, 0.99]
    assert found.profile.mass == 0.93
    assert stage.timed[0][1].mass == 0.93


@pytest.mark.parametrize("demanding", ["c", "d"])
def test_a_held_out_text_that_takes_more_makes_the_mass_larger_for_all(
    stage: Stage, demanding: str
) -> None:
    stage.near_from |= {"a": 0.85, "b": 0.85, demanding: 0.97}
    found = calibrated(stage)
    assert found.profile.mass == 0.97
    # The figures are those of the mass that is used, of the earlier text, too.
    assert [each.text for each in found.profile.held_out] == ["c by 0.97", "d by 0.97"]
    ((text, rule),) = stage.timed
    assert (text, rule.mass) == ("d", 0.97)
    assert (found.learnt_met, found.checked_met) == (True, True)


@pytest.mark.parametrize(
    ("missing", "met"), [("a", (False, True)), ("d", (True, False)), ("ad", (False, False))]
)
def test_where_no_mass_is_near_enough_the_largest_is_used_and_that_is_told(
    stage: Stage, missing: str, met: tuple[bool, bool]
) -> None:
    stage.near_from |= dict.fromkeys(missing, 2.0)
    found = calibrated(stage)
    assert found.profile.mass == MASSES[-1]
    assert (found.learnt_met, found.checked_met) == met
    assert [each.text for each in found.profile.held_out] == ["c by 0.99", "d by 0.99"]


ALL_CALLS = 2 * (2 + len(MASSES)) + 2 * (2 + len(MASSES) - 2) + 1


@pytest.mark.parametrize("stop_at", range(1, ALL_CALLS + 1))
def test_a_run_that_was_stopped_anywhere_goes_on_with_the_text_it_was_at(
    stage: Stage, stop_at: int
) -> None:
    stage.near_from |= {"a": 0.90, "c": 0.95}
    expected = calibrated(stage)
    assert len(stage.calls) == ALL_CALLS
    calls = list(stage.calls)
    new_run()[1].delete()

    def stop(_call: str) -> None:
        if len(stage.calls) == stop_at:
            raise AbortedError("stopped")

    stage.calls.clear()
    stage.before = stop
    run, _ = new_run()
    with pytest.raises(AbortedError):
        list(run.results(stage))  # type: ignore[arg-type]
    done = run.num_finished
    assert done == sum(call == "read" for call in calls[:stop_at]) - 1
    stage.before = lambda _call: None
    stage.calls.clear()
    again, _ = new_run()
    assert again.num_finished == done
    (found,) = again.results(stage)  # type: ignore[arg-type]
    starts = [i for i, call in enumerate(calls) if call == "read"]
    assert stage.calls == calls[starts[done] :]
    same(found, expected)


def same(found: Calibration, expected: Calibration) -> None:
    for name in ("fingerprint", "mass", "sparse_from_tokens", "max_kl", "held_out"):
        assert getattr(found.profile, name) == getattr(expected.profile, name)
    for name in ("allowances", "scales"):
        np.testing.assert_array_equal(
            getattr(found.profile.heads, name), getattr(expected.profile.heads, name)
        )
    assert (found.times, found.learnt_met, found.checked_met) == (
        expected.times,
        expected.learnt_met,
        expected.checked_met,
    )


def test_a_run_that_was_stopped_before_its_profile_was_written_measures_nothing_again(
    stage: Stage,
) -> None:
    expected = calibrated(stage)
    stage.calls.clear()
    same(calibrated(stage), expected)
    assert stage.calls == []


def test_abort_ends_it_at_the_next_token(stage: Stage) -> None:
    steps: list[QualityProgress] = []

    def progress(step: QualityProgress) -> None:
        steps.append(step)
        if len(steps) == 3:
            run.abort()

    run, _ = new_run(progress)
    with pytest.raises(AbortedError):
        list(run.results(stage))  # type: ignore[arg-type]
    assert stage.aborted
    assert len(steps) == 3


def test_what_fails_is_raised_and_what_was_finished_is_kept(stage: Stage) -> None:
    def fail(call: str) -> None:
        if call == "b 0.9":
            raise NativeError("the step failed")

    stage.before = fail
    run, parts = new_run()
    with pytest.raises(NativeError):
        list(run.results(stage))  # type: ignore[arg-type]
    assert run.num_finished == 1
    assert [path.name for path in parts.folder.iterdir()] == ["learning-0.json"]


def test_progress_goes_from_nothing_to_nearly_all_and_counts_texts(stage: Stage) -> None:
    steps: list[QualityProgress] = []
    run, _ = new_run(steps.append)
    list(run.results(stage))  # type: ignore[arg-type]
    shares = [step.done_share for step in steps]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.25
    assert 0.75 < shares[-1] <= 1
    assert [step.done_jobs for step in steps][-1] == 3
    assert {step.total_jobs for step in steps} == {4}
    assert {step.what for step in steps} >= {"a: reading", "b: learning", "d: checking"}
