"""Runs a plan: each prompt is read once and answered by everybody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ellm.errors import AbortedError
from ellm.quality.divergence import compare
from ellm.quality.fidelity import FidelityCell, Passage
from ellm.quality.interfaces import PromptTokenizer, QualityEngine, Replay
from ellm.quality.items import ItemKey, item_keys, make_prompt
from ellm.quality.plan import REFERENCE, Arm, QualityPlan
from ellm.quality.results import TaskAnswer
from ellm.quality.tasks.haystack import Haystack
from ellm.quality.tasks.registry import TASKS
from ellm.quality.tasks.task import score
from ellm.quality.work import DECODE_COST, ProgressCallback, Work

Logits = list[NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What one loaded model does.

    Attributes:
        reference: Whether it is the reference.
        candidates: What else is to be answered with it.
    """

    reference: bool
    candidates: tuple[Arm, ...]

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Everybody who answers, the reference first."""
        return ((REFERENCE,) if self.reference else ()) + self.candidates


def phases(candidates: tuple[Arm, ...], *, separate: bool) -> tuple[Phase, ...]:
    """Return the phases: one, or with `separate` the reference's and then the candidates'."""
    if separate:
        return Phase(reference=True, candidates=()), Phase(reference=False, candidates=candidates)
    return (Phase(reference=True, candidates=candidates),)


class QualityRun:
    """Measures phase by phase.

    The reference's logits over a tail, float32 (n, V), are kept until everybody was compared with
    them: for one passage at a time, or for all between two phases.
    """

    def __init__(
        self,
        plan: QualityPlan,
        passages: Sequence[Passage],
        haystacks: Sequence[Haystack],
        tokenizer: PromptTokenizer,
        *,
        phases: Sequence[Phase],
        progress: ProgressCallback,
    ) -> None:
        """Prepare to run `phases`, each once and in order.

        Args:
            plan: What to measure.
            passages: Texts to compare predictions over.
            haystacks: What needles are hidden in; the items take them in turn.
            tokenizer: That of all phases.
            phases: What `phases` returned.
            progress: Called as tokens are read and answered.
        """
        self._plan = plan
        self._passages = passages
        self._haystacks = haystacks
        self._tokenizer = tokenizer
        self._kept: dict[int, Logits] = {}
        self._engine: QualityEngine | None = None
        self._stopped = threading.Event()
        cost = sum(self._phase_cost(phase) for phase in phases)
        jobs = len(passages) + sum(1 for _ in item_keys(plan))
        self._work = Work(cost, jobs * len(phases), progress)

    def measure(self, engine: QualityEngine, phase: Phase) -> Iterator[TaskAnswer | FidelityCell]:
        """Yield every result as soon as it is there: the passages first, then the items.

        Raises:
            AbortedError: `abort` was called.
        """
        self._engine = engine
        with engine.replay(self._plan.context_tokens) as replay:
            for index, passage in enumerate(self._passages):
                yield from self._compared(replay, index, passage, phase)
            for key in item_keys(self._plan):
                yield from self._answered(replay, key, phase)

    def abort(self) -> None:
        """End `measure` soon, from any thread."""
        self._stopped.set()
        if self._engine is not None:
            self._engine.abort()

    def _compared(
        self, replay: Replay, index: int, passage: Passage, phase: Phase
    ) -> Iterator[FidelityCell]:
        what = f"{passage.text} at {passage.length_tokens:,} tokens"
        step = len(passage.tail) * DECODE_COST
        cost = len(passage.prompt)
        self._work.begin(self._passage_cost(passage, phase))
        replay.read(passage.prompt, self._on_read(what))
        if phase.reference:
            logits = self._tail(replay, passage, REFERENCE, what, cost)
            self._kept[index] = list(logits)
            cost += step
        for arm in phase.candidates:
            tail = self._tail(replay, passage, arm, what, cost)
            comparison = compare(self._kept[index], tail, passage.following)
            cost += step
            yield FidelityCell(
                text=passage.text,
                length_tokens=passage.length_tokens,
                arm=arm.name,
                comparison=comparison,
                parts=passage.parts,
                blocks_read=replay.totals.blocks_read,
                blocks_total=replay.totals.blocks_total,
                skipped_mass=replay.totals.skipped_mass,
            )
        if phase.candidates:
            del self._kept[index]
        self._work.finish()

    def _tail(
        self, replay: Replay, passage: Passage, arm: Arm, what: str, cost: int
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the logits (V,) after each token of the tail."""
        rows = replay.tail(passage.tail, arm.attention)
        for done, logits in enumerate(rows, 1):
            self._check_stopped()
            self._work.tell(f"{what}: {arm.name}", cost + done * DECODE_COST)
            # A copy: whoever feeds the tail may write the next row in place of this one.
            yield np.array(logits, dtype=np.float32)

    def _answered(self, replay: Replay, key: ItemKey, phase: Phase) -> Iterator[TaskAnswer]:
        self._check_stopped()
        prompt = make_prompt(key, self._plan.seed, self._haystacks, self._tokenizer)
        task = TASKS[key.task]
        cost = key.length_tokens
        self._work.begin(self._item_cost(key, phase))
        replay.read(prompt.tokens, self._on_read(str(key)))
        for arm in phase.arms:
            self._check_stopped()
            self._work.tell(f"{key}: {arm.name}", cost)
            answer = replay.answer(arm.attention, task.max_tokens)
            cost += task.max_tokens * DECODE_COST
            yield TaskAnswer(
                task=key.task,
                length_tokens=key.length_tokens,
                index=key.index,
                arm=arm.name,
                score=score(answer.text, prompt.item.expected),
                position=prompt.item.position,
                prompt_tokens=len(prompt.tokens),
                expected=prompt.item.expected,
                text=answer.text,
                blocks_read=answer.blocks_read,
                blocks_total=answer.blocks_total,
                skipped_mass=answer.skipped_mass,
            )
        self._work.finish()

    def _on_read(self, what: str) -> Callable[[int], None]:
        def on_read(done_tokens: int) -> None:
            self._check_stopped()
            self._work.tell(f"{what}: reading", done_tokens)

        return on_read

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise AbortedError("the measurement was stopped")

    def _phase_cost(self, phase: Phase) -> int:
        items = sum(self._item_cost(key, phase) for key in item_keys(self._plan))
        return items + sum(self._passage_cost(passage, phase) for passage in self._passages)

    def _passage_cost(self, passage: Passage, phase: Phase) -> int:
        return len(passage.prompt) + len(phase.arms) * len(passage.tail) * DECODE_COST

    def _item_cost(self, key: ItemKey, phase: Phase) -> int:
        answers = len(phase.arms) * TASKS[key.task].max_tokens
        return key.length_tokens + answers * DECODE_COST


def kept_bytes(passages: Sequence[Passage], vocab_size: int, *, separate: bool) -> int:
    """Return the bytes of logits that a run keeps at a time."""
    each = [4 * vocab_size * len(passage.tail) for passage in passages]
    return sum(each) if separate else max(each, default=0)
