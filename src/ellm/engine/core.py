"""The generation loop: one native call per step, advancing every sequence that can be."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ellm.engine.choosing import choices_of, keep_choices
from ellm.engine.scheduler import Part, Scheduler
from ellm.engine.sequence import Sequence as TokenSequence
from ellm.errors import AbortedError, EllmError
from ellm.kv.block_pool import BlockIds, BlockPool, blocks_for
from ellm.program.executor import (
    NUM_COUNTS,
    ChoiceRule,
    Executor,
    Observation,
    RowChoices,
    SequenceRows,
)


@dataclass(slots=True, eq=False)
class Reservation:
    """Blocks held outside the scheduler, for scoring; `aborted` is set by `abort`."""

    blocks: BlockIds
    aborted: bool = False


class EngineCore:
    """Runs steps for any number of callers, each of which drives the loop for its own requests.

    A step advances everybody's sequences, so callers in several threads share steps. A step that
    fails changes no sequence: what it wrote to KV is written again, with the same bytes, by the
    next one.
    """

    def __init__(self, executor: Executor, *, max_step_rows: int) -> None:
        """Own `executor` and its KV blocks."""
        self._executor = executor
        self.pool = BlockPool(executor.num_blocks, on_free=executor.forget)
        self.max_step_rows = min(max_step_rows, executor.max_rows)
        self._scheduler = Scheduler(self.pool, max_step_rows=self.max_step_rows)
        self._reservations: set[Reservation] = set()
        self._step_lock = threading.Lock()
        # Guards the two collections; reentrant, as a signal handler may abort at any bytecode.
        self._live_lock = threading.RLock()

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits."""
        return self._executor.vocab_size

    def submit(self, sequences: Iterable[TokenSequence]) -> None:
        """Put sequences in line."""
        with self._step_lock, self._live_lock:
            for sequence in sequences:
                self._scheduler.add(sequence)

    def remove(self, sequences: Iterable[TokenSequence]) -> None:
        """Take sequences out, finished or not; their blocks are free afterwards."""
        with self._step_lock, self._live_lock:
            for sequence in sequences:
                self._scheduler.remove(sequence)

    def abort(self) -> None:
        """End everything that is in line or running, from any thread; later requests are fine."""
        with self._live_lock:
            for sequence in self._scheduler.sequences:
                sequence.aborted = True
            for reservation in self._reservations:
                reservation.aborted = True
            self._executor.abort()

    def step(self) -> None:
        """Run one step for whoever is in line.

        Raises:
            EllmError: The executor failed; no sequence was changed.
        """
        with self._step_lock:
            self._end_aborted()
            with self._live_lock:
                parts = self._scheduler.schedule()
            if not parts:
                return
            started = time.perf_counter()
            try:
                logits, choices = self._run(parts)
            except AbortedError:
                self._end_aborted()
                return
            self._advance(parts, logits, choices, started)

    @contextmanager
    def reserve(self, tokens: int) -> Iterator[Reservation]:
        """Hold blocks for `tokens` tokens outside the line.

        Raises:
            CapacityError: Fewer blocks are free.
        """
        with self._step_lock, self._live_lock:
            reservation = Reservation(self.pool.allocate(blocks_for(tokens)))
            self._reservations.add(reservation)
        try:
            yield reservation
        finally:
            with self._step_lock, self._live_lock:
                self._reservations.discard(reservation)
                self.pool.release(reservation.blocks)

    def run_reserved(
        self,
        reservation: Reservation,
        tokens: npt.NDArray[np.int32],
        start: int,
        *,
        logits_rows: npt.NDArray[np.int32] | None = None,
        rule: ChoiceRule | None = None,
        observed: Observation | None = None,
    ) -> tuple[npt.NDArray[np.float32], RowChoices | None]:
        """Run `tokens` (T,) from position `start` on.

        Args:
            reservation: Whose blocks.
            tokens: What to run.
            start: Position of the first.
            logits_rows: Rows whose logits are wanted, int32; None is all.
            rule: How the rows choose the blocks they read.
            observed: What else is wanted of rows with a rule.

        Returns:
            Logits (rows wanted, V), and what was chosen if there is a rule.

        Raises:
            AbortedError: `abort` was called.
        """
        count = len(tokens)
        choices = (
            None if rule is None else RowChoices(rule, np.zeros((count, NUM_COUNTS)), observed)
        )
        blocks = reservation.blocks[: blocks_for(start + count)]
        rows = SequenceRows(blocks, start, count, choices)
        wanted = np.arange(count, dtype=np.int32) if logits_rows is None else logits_rows
        with self._step_lock:
            if reservation.aborted:
                raise AbortedError("the engine was told to stop")
            return self._executor.step(tokens, [rows], wanted).copy(), choices

    def _run(
        self, parts: Sequence[Part]
    ) -> tuple[npt.NDArray[np.float32], list[RowChoices | None]]:
        tokens: list[int] = []
        rows: list[SequenceRows] = []
        logits_rows: list[int] = []
        for part in parts:
            tokens += part.sequence.tokens(part.start, part.count)
            blocks = part.sequence.blocks[: blocks_for(part.start + part.count)]
            rows.append(SequenceRows(blocks, part.start, part.count, choices_of(part)))
            if part.wants_logits:
                logits_rows.append(len(tokens) - 1)
        logits = self._executor.step(
            np.array(tokens, dtype=np.int32), rows, np.array(logits_rows, dtype=np.int32)
        )
        return logits, [run.choices for run in rows]

    def _advance(
        self,
        parts: Sequence[Part],
        logits: npt.NDArray[np.float32],
        choices: Sequence[RowChoices | None],
        started: float,
    ) -> None:
        rows = iter(logits)
        for part, chosen in zip(parts, choices, strict=True):
            sequence = part.sequence
            sequence.cached_tokens = part.start + part.count
            keep_choices(part, chosen)
            if sequence.timeline.first_step is None:
                sequence.timeline.first_step = started
            if not part.wants_logits:
                continue
            self._take_token(sequence, next(rows))
            if sequence.finished:
                with self._live_lock:
                    self._scheduler.remove(sequence)

    def _take_token(self, sequence: TokenSequence, logits: npt.NDArray[np.float32]) -> None:
        try:
            sequence.answer.take(logits)
        except EllmError as error:
            sequence.error = error
            return
        now = time.perf_counter()
        sequence.timeline.last_token = now
        if sequence.timeline.first_token is None:
            sequence.timeline.first_token = now

    def _end_aborted(self) -> None:
        with self._live_lock:
            for sequence in self._scheduler.sequences:
                if sequence.aborted:
                    sequence.answer.finish("abort")
                    self._scheduler.remove(sequence)
