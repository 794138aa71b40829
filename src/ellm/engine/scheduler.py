"""Which rows run in the next step: prompt chunks first, else one row of every sequence."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from ellm.engine.sequence import Sequence
from ellm.kv.block_pool import BlockPool


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive rows of one sequence in a step.

    Attributes:
        sequence: Whose rows.
        start: Position of the first.
        count: How many.
        wants_logits: Whether the last row's logits lead to a token.
    """

    sequence: Sequence
    start: int
    count: int
    wants_logits: bool


class Scheduler:
    """First come, first served; a sequence is admitted when all the blocks it may need are free.

    Reserving the longest answer at admission was chosen over preemption: with one or a few long
    prompts, reading one again costs minutes, while a reserved block costs untouched memory.
    """

    def __init__(self, pool: BlockPool, *, max_step_rows: int) -> None:
        """Schedule over `pool`, at most `max_step_rows` rows a step."""
        self._pool = pool
        self._max_step_rows = max_step_rows
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def sequences(self) -> list[Sequence]:
        """Every sequence that was added and not removed, first come first."""
        return [*self._running, *self._waiting]

    def add(self, sequence: Sequence) -> None:
        """Put a sequence at the end of the line."""
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and release its blocks; do nothing if it is gone."""
        if sequence in self._running:
            self._running.remove(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        blocks, sequence.blocks = sequence.blocks, np.empty(0, dtype=np.int32)
        self._pool.release(blocks)

    def schedule(self) -> list[Part]:
        """Return the parts of the next step; none if there is nothing to do."""
        self._admit()
        return self._prefill() or self._decode()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_step_rows:
            sequence = self._waiting[0]
            if sequence.blocks_needed > self._pool.num_free:
                return
            sequence.blocks = self._pool.allocate(sequence.blocks_needed)
            self._running.append(self._waiting.popleft())

    def _prefill(self) -> list[Part]:
        parts: list[Part] = []
        rows_left = self._max_step_rows
        for sequence in self._running:
            if not sequence.in_prefill:
                continue
            unread = len(sequence.prompt) - sequence.cached_tokens
            count = min(unread, rows_left)
            parts.append(Part(sequence, sequence.cached_tokens, count, count == unread))
            rows_left -= count
            if not rows_left:
                break
        return parts

    def _decode(self) -> list[Part]:
        return [
            Part(sequence, sequence.cached_tokens, count=1, wants_logits=True)
            for sequence in self._running
        ]
