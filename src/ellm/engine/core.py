"""The generation loop: one native call per step, advancing every sequence that can be."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from ellm.engine.chains import Chains
from ellm.engine.choosing import choices_of, keep_choices
from ellm.engine.prefixes import BlockStore, PrefixCache, PrefixConfig
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
from ellm.speculative.chain import SequenceChains


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

    def __init__(
        self,
        executor: Executor,
        *,
        max_step_rows: int,
        chains: Chains | None = None,
        reuse: PrefixConfig | None = None,
    ) -> None:
        """Own `executor` and its KV blocks.

        Args:
            executor: Runs the steps; with `reuse`, its blocks can be copied.
            max_step_rows: Rows of a step at most.
            chains: What guesses tokens of answers.
            reuse: How blocks are shared between sequences and kept; None reads every prompt whole.
        """
        self._executor = executor
        self._chains = Chains([], most=0) if chains is None else chains
        self.pool = BlockPool(executor.num_blocks, on_free=executor.forget)
        self.max_step_rows = min(max_step_rows, executor.max_rows)
        self._prefixes: PrefixCache | None = None
        if reuse is not None:
            self._prefixes = PrefixCache(self.pool, cast(BlockStore, executor), reuse)
        self._scheduler = Scheduler(
            self.pool, max_step_rows=self.max_step_rows, prefixes=self._prefixes
        )
        self._reservations: set[Reservation] = set()
        self._step_lock = threading.Lock()
        # Guards the two collections; reentrant, as a signal handler may abort at any bytecode.
        self._live_lock = threading.RLock()

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits."""
        return self._executor.vocab_size

    def open_chains(self, most: int | None) -> SequenceChains | None:
        """Return what guesses for a new sequence, at most `most` tokens per step; see `Chains`."""
        return self._chains.open(most)

    def submit(self, sequences: Iterable[TokenSequence]) -> None:
        """Put sequences in line."""
        with self._step_lock, self._live_lock:
            for sequence in sequences:
                self._scheduler.add(sequence)

    def remove(self, sequences: Iterable[TokenSequence]) -> None:
        """Take sequences out, finished or not; their blocks are free afterwards."""
        with self._step_lock, self._live_lock:
            for sequence in sequences:
                self._remove(sequence)

    def abort(self) -> None:
        """End everything that is in line or running, from any thread; later requests are fine."""
        with self._live_lock:
            for sequence in self._scheduler.sequences:
                sequence.aborted = True
            for reservation in self._reservations:
                reservation.aborted = True
            self._executor.abort()
            self._chains.abort()

    def close(self) -> None:
        """End everything, and write what waits for the disk."""
        self.abort()
        if self._prefixes is not None:
            self._prefixes.close()

    def step(self) -> None:
        """Run one step for whoever is in line.

        Raises:
            EllmError: The executor failed; no sequence was changed.
        """
        with self._step_lock:
            self._end_aborted()
            self._restore()
            with self._live_lock:
                parts = self._scheduler.schedule()
            if not parts:
                return
            try:
                self._run(parts)
            except AbortedError:
                self._end_aborted()

    @contextmanager
    def reserve(self, tokens: int) -> Iterator[Reservation]:
        """Hold blocks for `tokens` tokens outside the line.

        Raises:
            CapacityError: Fewer blocks are free.
        """
        with self._step_lock, self._live_lock:
            needed = blocks_for(tokens)
            if self._prefixes is not None:
                self._prefixes.room(needed)
            reservation = Reservation(self.pool.allocate(needed))
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

    def _run(self, parts: list[Part]) -> None:
        """Run a step over `parts` and take what it brings.

        Raises:
            AbortedError: `abort` was called; no sequence was changed.
        """
        in_answers = parts[0].in_answer
        if in_answers:
            parts = self._chains.extend(parts, self._executor, max_rows=self.max_step_rows)
        started = time.perf_counter()
        logits, choices = self._step(parts)
        seconds = time.perf_counter() - started
        if in_answers:
            self._chains.observe(parts, seconds)
        num_rows = sum(part.count for part in parts)
        rows = iter(logits)
        for part, chosen in zip(parts, choices, strict=True):
            timeline = part.sequence.timeline
            if timeline.first_step is None:
                timeline.first_step = started
            taken = self._take_tokens(part, list(itertools.islice(rows, part.num_logits)))
            self._commit(part, taken, chosen, seconds * part.count / num_rows)

    def _step(
        self, parts: Sequence[Part]
    ) -> tuple[npt.NDArray[np.float32], list[RowChoices | None]]:
        tokens: list[int] = []
        rows: list[SequenceRows] = []
        logits_rows: list[int] = []
        for part in parts:
            tokens += part.tokens()
            blocks = part.sequence.blocks[: blocks_for(part.start + part.count)]
            rows.append(SequenceRows(blocks, part.start, part.count, choices_of(part)))
            logits_rows += range(len(tokens) - part.num_logits, len(tokens))
        logits = self._executor.step(
            np.array(tokens, dtype=np.int32), rows, np.array(logits_rows, dtype=np.int32)
        )
        return logits, [run.choices for run in rows]

    def _take_tokens(self, part: Part, logits: list[npt.NDArray[np.float32]]) -> list[int]:
        """Let the answer take what `logits` of the last rows lead to while guesses are right."""
        sequence = part.sequence
        taken: list[int] = []
        for row, guess in zip(logits, [*part.draft, None], strict=False):
            try:
                sequence.answer.take(row)
            except EllmError as error:
                sequence.error = error
                break
            taken.append(sequence.answer.tokens[-1])
            if taken[-1] != guess or sequence.finished:
                break
        if taken:
            now = time.perf_counter()
            sequence.timeline.last_token = now
            if sequence.timeline.first_token is None:
                sequence.timeline.first_token = now
        return taken

    def _commit(
        self, part: Part, taken: list[int], choices: RowChoices | None, seconds: float
    ) -> None:
        """Make rows part of their sequence: a prompt's all, an answer's one per token taken."""
        sequence = part.sequence
        rows = len(taken) if part.in_answer else part.count
        sequence.cached_tokens = part.start + rows
        keep_choices(part, choices, rows)
        if self._prefixes is not None:
            self._prefixes.keep(sequence)
        if part.in_answer and taken:
            self._chains.committed(part, taken, seconds)
        if sequence.finished:
            with self._live_lock:
                self._remove(sequence)
        elif sequence.chains is not None:
            # From the start on, also where a prompt's beginning did not have to be read.
            told, end = sequence.chains.told_tokens, sequence.cached_tokens
            if taken:
                end = len(sequence.prompt) + len(sequence.answer.tokens)
            sequence.chains.commit(sequence.tokens(told, end - told))

    def _restore(self) -> None:
        if self._prefixes is None:
            return
        with self._live_lock:
            sequence = self._scheduler.restoring()
        if sequence is not None:
            self._prefixes.restore(sequence)

    def _remove(self, sequence: TokenSequence) -> None:
        if self._prefixes is not None and sequence.blocks.size:
            self._executor.forget(sequence.blocks)  # shared ones are not freed, but read as stored
        self._scheduler.remove(sequence)
        if sequence.chains is not None:
            sequence.chains.close()

    def _end_aborted(self) -> None:
        with self._live_lock:
            for sequence in self._scheduler.sequences:
                if sequence.aborted:
                    sequence.answer.finish("abort")
                    self._remove(sequence)
