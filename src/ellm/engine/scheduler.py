"""Which rows run in the next step: prompt chunks first, else one row of every sequence."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from ellm.engine.prefixes import PrefixCache
from ellm.engine.sequence import Sequence
from ellm.kv.block_pool import BlockIds, BlockPool
from ellm.program.executor import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive rows of one sequence in a step.

    Attributes:
        sequence: Whose rows.
        start: Position of the first.
        count: How many.
        wants_logits: Whether the last row's logits lead to a token.
        draft: Guesses, not committed: the tokens of all rows but the first. The logits of every
            row are wanted then.
    """

    sequence: Sequence
    start: int
    count: int
    wants_logits: bool
    draft: tuple[int, ...] = ()

    @property
    def num_logits(self) -> int:
        """How many of the last rows' logits are wanted."""
        return 1 + len(self.draft) if self.wants_logits else 0

    @property
    def in_answer(self) -> bool:
        """Whether these are rows of an answer, not of a prompt."""
        return self.start >= len(self.sequence.prompt)

    def tokens(self) -> list[int]:
        """Return the tokens of the rows."""
        return [*self.sequence.tokens(self.start, self.count - len(self.draft)), *self.draft]


class Scheduler:
    """First come, first served; a sequence is admitted when all the blocks it may need are free.

    Reserving the longest answer at admission was chosen over preemption: with one or a few long
    prompts, reading one again costs minutes, while a reserved block costs untouched memory.
    """

    def __init__(
        self, pool: BlockPool, *, max_step_rows: int, prefixes: PrefixCache | None = None
    ) -> None:
        """Schedule over `pool`, at most `max_step_rows` rows a step.

        With `prefixes`, what was read before is not read again.
        """
        self._pool = pool
        self._prefixes = prefixes
        # Free blocks when the first in line did not fit; None if that may have changed since.
        self._too_few_free: int | None = None
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
        self._too_few_free = None

    def restoring(self) -> Sequence | None:
        """Return a sequence that waits for blocks from disk, if one does."""
        self._admit()
        return next((item for item in self._running if item.reuse.to_restore), None)

    def schedule(self) -> list[Part]:
        """Return the parts of the next step; none if there is nothing to do."""
        self._admit()
        return self._prefill() or self._decode()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_step_rows:
            if self._too_few_free == self._pool.num_free:
                return
            if not self._take_blocks(self._waiting[0]):
                self._too_few_free = self._pool.num_free
                return
            self._running.append(self._waiting.popleft())

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Give a sequence all the blocks it may need, or none; return which."""
        if self._prefixes is None:
            if sequence.blocks_needed > self._pool.num_free:
                return False
            sequence.blocks = self._pool.allocate(sequence.blocks_needed)
            return True
        self._prefixes.begin(sequence)
        matched = self._prefixes.match(sequence)
        needed = sequence.blocks_needed - len(matched)
        if not self._prefixes.room(needed):
            self._pool.release(matched)
            return False
        sequence.blocks = np.concatenate([matched, self._pool.allocate(needed)])
        self._take_shared(sequence, matched)
        sequence.reuse.to_restore = self._prefixes.on_disk(sequence, len(matched))
        return True

    def _take_shared(self, sequence: Sequence, matched: BlockIds) -> None:
        sequence.blocks[: len(matched)] = matched
        sequence.cached_tokens = len(matched) * BLOCK_TOKENS
        sequence.reuse.memory_tokens = sequence.cached_tokens
        sequence.reuse.kept_blocks = len(matched)

    def _match_again(self, prefixes: PrefixCache, sequence: Sequence) -> None:
        """Share what others have read since a sequence was admitted."""
        matched = prefixes.match(sequence)
        if len(matched) * BLOCK_TOKENS <= sequence.cached_tokens:
            self._pool.release(matched)
            return
        self._pool.release(sequence.blocks[: len(matched)])
        self._take_shared(sequence, matched)

    def _prefill(self) -> list[Part]:
        parts: list[Part] = []
        rows_left = self._max_step_rows
        for sequence in self._running:
            if not sequence.in_prefill or sequence.reuse.to_restore:
                continue
            if self._prefixes is not None and sequence.timeline.first_step is None:
                if _is_being_read(sequence, parts):
                    continue
                if not sequence.reuse.disk_tokens:
                    self._match_again(self._prefixes, sequence)
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
            if not sequence.in_prefill
        ]


def _is_being_read(sequence: Sequence, parts: list[Part]) -> bool:
    """Return whether `parts` read a block that `sequence` could share after this step."""
    index = sequence.cached_tokens // BLOCK_TOKENS
    if index >= (len(sequence.prompt) - 1) // BLOCK_TOKENS:
        return False
    key = sequence.reuse.keys[index]
    return any(part.sequence.reuse.keys[index : index + 1] == [key] for part in parts)
