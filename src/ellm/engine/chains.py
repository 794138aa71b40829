"""Chains: which guesses each step checks, and what is learnt from the tokens that came."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ellm.engine.choosing import choices_of
from ellm.engine.scheduler import Part
from ellm.program.executor import Executor, SequenceRows
from ellm.speculative.chain import NextStep, SequenceChains
from ellm.speculative.draft_model import DraftModel
from ellm.speculative.policy import share_rows
from ellm.speculative.source import DraftContext, Drafter, Proposal
from ellm.speculative.step_times import StepTimes

# Of so many steps one goes without guesses, so that what they are compared with stays known.
PLAIN_EVERY = 32
# A guess that is worth a trial of more rows, whatever they are expected to take.
TRIAL_CHANCE = 0.85
# Time for measuring steps before the first chain.
MEASURING_SECONDS = 0.8

_NO_LOGITS = np.empty(0, dtype=np.int32)


class Chains:
    """Chooses the chains of all sequences of an engine.

    Guesses never change an answer: each is checked by the row that would come after it anyway. So
    what is learnt here, which depends on time and company, changes nothing but speed.

    Attributes:
        measured: Whether steps were timed, or need not be.
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], Drafter]],
        *,
        most: int,
        draft_model: DraftModel | None = None,
    ) -> None:
        """Guess with the sources that `makers` return, cheapest first, `most` tokens per step."""
        self._makers = makers
        self._most = most
        self._draft_model = draft_model
        self._times = StepTimes()
        self.measured = not most  # without guesses there is nothing to know
        self._steps_with_guesses = 0

    def open(self, most: int | None) -> SequenceChains | None:
        """Return the sources for a new sequence; None if it wants no guesses."""
        wanted = self._most if most is None else min(most, self._most)
        return SequenceChains([make() for make in self._makers], wanted) if wanted else None

    def abort(self) -> None:
        """End a running step of the draft model, from any thread."""
        if self._draft_model is not None:
            self._draft_model.executor.abort()

    def extend(self, parts: list[Part], executor: Executor, *, max_rows: int) -> list[Part]:
        """Return `parts`, each one row of an answer, with the guesses that pay.

        Raises:
            AbortedError: The engine was told to stop.
        """
        if not any(part.sequence.chains for part in parts):
            return parts
        guessing = next(part for part in parts if part.sequence.chains)
        self._measure(guessing, executor, max_rows)
        self._steps_with_guesses += 1
        if self._steps_with_guesses > PLAIN_EVERY:
            return parts
        step = NextStep(self._seconds(parts), len(parts))
        proposals = [self._propose(part, step, max_rows - len(parts)) for part in parts]
        chances = [proposal.chances if proposal else [] for proposal in proposals]
        lengths = share_rows(chances, step.seconds, most=max_rows - len(parts))
        if not any(lengths):
            lengths = self._trial(parts, chances)
        return [
            replace(part, count=1 + length, draft=tuple(proposal.tokens[:length]))
            if proposal is not None
            else part
            for part, proposal, length in zip(parts, proposals, lengths, strict=True)
        ]

    def observe(self, parts: Sequence[Part], seconds: float) -> None:
        """Take the time that a step over rows of answers took."""
        rows = sum(part.count for part in parts)
        if rows == len(parts):
            self._steps_with_guesses = 0
        self._times.observe(_mode(parts), _depth_tokens(parts), rows, seconds)

    def committed(self, part: Part, tokens: Sequence[int], seconds: float) -> None:
        """Learn from the tokens that the row of `part` and its guesses brought, at least one.

        Args:
            part: Rows of an answer.
            tokens: What was committed.
            seconds: Share of the step that these rows took.
        """
        chains = part.sequence.chains
        if chains is None:
            return
        log = chains.log
        log.steps += 1
        log.tokens += len(tokens)
        chains.checked(len(part.draft), len(tokens) - 1)
        chains.proposal = None
        log.saved_seconds += len(tokens) * self._seconds([part])(1) - seconds

    def _seconds(self, parts: Sequence[Part]) -> Callable[[int], float]:
        return functools.partial(self._times.predict, _mode(parts), _depth_tokens(parts))

    def _trial(self, parts: Sequence[Part], chances: list[list[float]]) -> list[int]:
        """Return a chain for a single sequence, now and then, where none is expected to pay.

        Times that were wrong, as those of a busy machine, would never be known better otherwise.
        """
        lengths = [0] * len(parts)
        if len(parts) == 1 and chances[0] and chances[0][0] >= TRIAL_CHANCE:
            likely = itertools.takewhile(lambda chance: chance >= TRIAL_CHANCE, chances[0])
            for length in (min(3, len(list(likely))), 1):
                if self._times.needs_trial(_mode(parts), _depth_tokens(parts), 1 + length):
                    lengths[0] = length
                    break
        return lengths

    def _propose(self, part: Part, step: NextStep, rows_left: int) -> Proposal | None:
        sequence = part.sequence
        if sequence.chains is None:
            return None
        most = min(sequence.chains.most, rows_left, sequence.guesses_left(part.start))
        if most < 1:
            return None
        answer = sequence.answer
        sequence.chains.proposal = sequence.chains.propose(
            most,
            step,
            tokens_left=answer.max_tokens - len(answer.tokens),
            context=DraftContext(answer.guesser(), sequence.blocks, part.start),
        )
        return sequence.chains.proposal

    def _measure(self, part: Part, executor: Executor, max_rows: int) -> None:
        """Learn what steps of few rows take, once, where guesses of `part` would be run.

        As with guesses that are wrong, the rows are written over by those that come.
        """
        most_rows = min(1 + self._most, max_rows, 1 + part.sequence.guesses_left(part.start))
        if self.measured or most_rows < 2:
            return
        self.measured = True
        if self._draft_model is not None:
            self._draft_model.measure()
        self._times.start(_step_seconds(executor, part, most_rows))


def _step_seconds(executor: Executor, part: Part, most_rows: int) -> dict[int, float]:
    """Return the seconds of steps by their number of rows, as many as time allows.

    Raises:
        AbortedError: The engine was told to stop.
    """
    seconds: dict[int, float] = {}
    began = time.perf_counter()
    counts = [rows for rows in (1, 2, most_rows, 4, 3, 6, 8) if rows <= most_rows]
    # One row first: it may wait for weights from the disk. Then the least of a few times each.
    for rows in (1, *counts * 3):
        started = time.perf_counter()
        choices = choices_of(replace(part, count=rows))
        run = SequenceRows(part.sequence.blocks, part.start, rows, choices)
        executor.step(np.zeros(rows, dtype=np.int32), [run], _NO_LOGITS)
        taken = time.perf_counter() - started
        seconds[rows] = min(taken, seconds.get(rows, taken))
        if time.perf_counter() - began > MEASURING_SECONDS:
            break
    return seconds


def _mode(parts: Sequence[Part]) -> object:
    rule = parts[0].sequence.attention.rule_at(parts[0].start)
    return None if rule is None else rule.estimate


def _depth_tokens(parts: Sequence[Part]) -> int:
    return sum(part.start for part in parts) // len(parts)
