"""Runs a calibration: learns from some texts, checks on others, times, and makes the profile."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ellm.calibration.comparing import feed, figures_under
from ellm.calibration.cost import Clock, StepTimes, sparse_from_tokens, time_steps
from ellm.calibration.learning import Learnt, TextFindings, choose_mass, learnt_mass
from ellm.calibration.observing import observe_tail
from ellm.calibration.parts import CheckedText, Kept, PartFiles
from ellm.calibration.plan import MASSES, CalibrationPlan
from ellm.calibration.shape import Shape
from ellm.calibration.texts import CalibrationTexts
from ellm.engine.llm import LLM
from ellm.engine.replay import Replay
from ellm.errors import AbortedError, NativeError
from ellm.program.executor import ChoiceRule, Estimate
from ellm.quality.fidelity import Passage
from ellm.quality.work import DECODE_COST, ProgressCallback, Work
from ellm.sparse.counts import ChoiceLog
from ellm.sparse.profile import SparseProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedModel:
    """What a calibration must know of a model.

    Attributes:
        fingerprint: Of its file.
        shape: Of its attention.
        context_length: Tokens it was trained to read.
    """

    fingerprint: str
    shape: Shape
    context_length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What a calibration came to.

    Attributes:
        profile: For the engine.
        times: Of steps at the depth of the texts.
        learnt_met: Whether predictions were near enough on the texts that were learnt from.
        checked_met: Whether they were on the held-out texts.
    """

    profile: SparseProfile
    times: StepTimes
    learnt_met: bool
    checked_met: bool


class CalibrationRun:
    """Calibrates a model text by text; what is finished is kept in files."""

    def __init__(
        self,
        plan: CalibrationPlan,
        texts: CalibrationTexts,
        model: CalibratedModel,
        *,
        parts: PartFiles,
        kept: Kept,
        progress: ProgressCallback,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Prepare to run once.

        Args:
            plan: What to run.
            texts: What to learn from and to check on; at least one of each.
            model: What is calibrated.
            parts: Where finished texts are kept.
            kept: What they have of an earlier run.
            progress: Called as tokens are read and fed.
            clock: Returns seconds.
        """
        self._plan = plan
        self._texts = texts
        self._model = model
        self._parts = parts
        self._learnt = list(kept.learning)
        self._checked = list(kept.held_out)
        self._clock = clock
        self._engine: LLM | None = None
        self._stopped = threading.Event()
        left = [*texts.learning[len(self._learnt) :], *texts.held_out[len(self._checked) :]]
        self._work = Work(sum(map(_cost, left)), len(left), progress)

    @property
    def num_finished(self) -> int:
        """Texts that are finished, those of an earlier run included."""
        return len(self._learnt) + len(self._checked)

    def results(self, engine: LLM) -> Iterator[Calibration]:
        """Yield the one result.

        Raises:
            AbortedError: `abort` was called.
            ConfigError: What was found cannot be kept.
        """
        self._engine = engine
        with engine.replay(self._plan.context_tokens) as replay:
            for index in range(len(self._learnt), len(self._texts.learning)):
                found = self._learn(replay, self._texts.learning[index])
                self._parts.keep_learning(index, found)
                self._learnt.append(found)
            heads = Learnt.from_texts(self._learnt)
            first, learnt_met = learnt_mass(self._learnt, self._plan.max_kl)
            for index in range(len(self._checked), len(self._texts.held_out)):
                shown = self._check(replay, index, heads, first)
                self._parts.keep_held_out(index, shown)
                self._checked.append(shown)
        yield self._calibration(heads, first, learnt_met=learnt_met)

    def abort(self) -> None:
        """End `results` soon, from any thread."""
        self._stopped.set()
        if self._engine is not None:
            self._engine.abort()

    def _learn(self, replay: Replay, passage: Passage) -> TextFindings:
        tick = self._read(replay, passage, "learning")
        exact, observations = observe_tail(
            replay, passage.tail, len(passage.prompt), self._model.shape, tick
        )
        by_mass = tuple(
            figures_under(replay, passage, exact, ChoiceRule(Estimate.SCAN, mass), tick)
            for mass in MASSES
        )
        self._work.finish()
        return TextFindings(text=passage.text, observations=observations, by_mass=by_mass)

    def _check(self, replay: Replay, index: int, heads: Learnt, first: int) -> CheckedText:
        """Look at a held-out text by what was learnt, with the masses from `first` on.

        With all of them, so that a mass that only a later text calls for has figures of every
        text: feeding the tail again costs little beside reading the text again.
        """
        passage = self._texts.held_out[index]
        tick = self._read(replay, passage, "checking")
        exact = list(feed(replay, passage, None, ChoiceLog(), tick))
        by_mass = tuple(
            figures_under(replay, passage, exact, heads.rule(mass), tick)
            for mass in range(first, len(MASSES))
        )
        times = None
        if index == len(self._texts.held_out) - 1:
            texts = [*(text.by_mass for text in self._checked), by_mass]
            chosen, _ = choose_mass(texts, self._plan.max_kl)
            times = time_steps(replay, passage, heads.rule(first + chosen), self._clock, tick)
        self._work.finish()
        return CheckedText(by_mass=by_mass, times=times)

    def _calibration(self, heads: Learnt, first: int, *, learnt_met: bool) -> Calibration:
        by_mass = [text.by_mass for text in self._checked]
        chosen, checked_met = choose_mass(by_mass, self._plan.max_kl)
        times = self._checked[-1].times
        if times is None:
            raise NativeError("the steps of the last text were not timed")
        profile = SparseProfile(
            fingerprint=self._model.fingerprint,
            mass=MASSES[first + chosen],
            sparse_from_tokens=sparse_from_tokens(times, self._model.context_length),
            heads=heads.heads(first + chosen),
            max_kl=self._plan.max_kl,
            held_out=tuple(text.by_mass[chosen] for text in self._checked),
        )
        return Calibration(
            profile=profile, times=times, learnt_met=learnt_met, checked_met=checked_met
        )

    def _read(self, replay: Replay, passage: Passage, what: str) -> Callable[[], None]:
        """Read a text; return what to call after each step on its tail."""
        self._check_stopped()
        self._work.begin(_cost(passage))

        def on_read(done_tokens: int) -> None:
            self._check_stopped()
            self._work.tell(f"{passage.text}: reading", done_tokens)

        replay.read(passage.prompt, on_read)
        steps = itertools.count(1)

        def on_step() -> None:
            self._check_stopped()
            done = len(passage.prompt) + next(steps) * DECODE_COST
            self._work.tell(f"{passage.text}: {what}", done)

        return on_step

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise AbortedError("the calibration was stopped")


def _cost(passage: Passage) -> int:
    """Return the cost of a text, at most: from which mass on one is checked is learnt first."""
    return len(passage.prompt) + (1 + len(MASSES)) * len(passage.tail) * DECODE_COST
