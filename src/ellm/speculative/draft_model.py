"""Guesses of a smaller model of the same vocabulary, which reads only the end of the text."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ellm.errors import CapacityError
from ellm.kv.block_pool import BlockIds, BlockPool, blocks_for
from ellm.program.executor import SequenceRows, Tokens, TrimmedExecutor
from ellm.speculative.confidence import ConfidenceChances, ConfidentGuesses
from ellm.speculative.source import DraftContext, Outlook, Proposal
from ellm.speculative.step_times import StepTimes
from ellm.speculative.vocabulary import COMMON_TOKENS, LikelyVocabulary

# Source of the figures: shared/research/proto_draft.md, sections 2 and 6.
MOST_GUESSES = 4
_PRIOR_CHANCE = 0.75
WINDOW_TOKENS = 1024
# Read at most this much before a step of the large model, so that no token waits long.
READ_ROWS = 128
# While guessing does not pay, try it every so many tokens: the text may have changed.
RETRY_TOKENS = 64
_ROWS_MEASURED = (1, 4)


class DraftModel:
    """The small model and what was learnt of it; shared by all sequences."""

    def __init__(
        self,
        executor: TrimmedExecutor,
        *,
        vocab_size: int,
        window_tokens: int = WINDOW_TOKENS,
        common_tokens: int = COMMON_TOKENS,
    ) -> None:
        """Use `executor` and its KV blocks; a sequence holds blocks for twice the window.

        `vocab_size` is V of the large model. Where the small one's head has fewer rows, the tokens
        without a row are never guessed; rows beyond are left out: both are padding. Guesses are
        the first `common_tokens` ids, and what is in the text (in groups of 16 ids).
        """
        self.executor = executor
        self._vocab_size = vocab_size
        self._common_tokens = common_tokens
        self.window_tokens = window_tokens
        self.capacity_tokens = 2 * window_tokens
        self.pool = BlockPool(executor.num_blocks, on_free=executor.forget)
        self.times = StepTimes()
        self.chances = ConfidenceChances(_PRIOR_CHANCE)

    def open(self) -> ModelDrafter:
        """Return a drafter for one sequence."""
        return ModelDrafter(self)

    def vocabulary(self) -> LikelyVocabulary:
        """Return what is guessed from before a text is known."""
        return LikelyVocabulary(self.executor.vocab_size, self._common_tokens)

    def measure(self) -> None:
        """Learn what steps take.

        Raises:
            AbortedError: The engine was told to stop.
        """
        blocks = self.pool.allocate(1)
        try:
            self.times.start(
                {rows: self._timed_step(blocks, rows) for rows in (1, *_ROWS_MEASURED)}
            )
        finally:
            self.pool.release(blocks)

    def _timed_step(self, blocks: BlockIds, rows: int) -> float:
        started = time.perf_counter()
        self.step(blocks, 0, [0] * rows, self.vocabulary().groups)
        return time.perf_counter() - started

    def step(
        self, blocks: BlockIds, start: int, tokens: Sequence[int], groups: Tokens
    ) -> NDArray[np.float32]:
        """Run `tokens` from position `start` on and return the last one's logits (V,).

        They are minus infinity outside of the vocabulary groups `groups`.
        """
        began = time.perf_counter()
        rows = SequenceRows(blocks[: blocks_for(start + len(tokens))], start, len(tokens))
        last = np.array([len(tokens) - 1], dtype=np.int32)
        inputs = np.array(tokens, dtype=np.int32)
        logits = self.executor.step_trimmed(inputs, [rows], last, groups)
        self.times.observe(None, 0, len(tokens), time.perf_counter() - began)
        missing = max(0, self._vocab_size - logits.shape[1])
        return np.pad(logits[0, : self._vocab_size], (0, missing), constant_values=-np.inf)


class ModelDrafter:
    """Guesses for one sequence.

    Its KV holds the end of the text from a place that moves on in leaps: the last 1,024 tokens are
    read, and kept while up to as many are added. Besides copies from the whole text a longer
    window brings nothing (shared/research/proto_draft.md, section 2).
    """

    name = "draft_model"

    def __init__(self, model: DraftModel) -> None:
        """Start with an empty text, and take blocks with the first guess."""
        self._model = model
        self._text: list[int] = []
        self._vocabulary = model.vocabulary()
        self._start = 0  # position in the text of the first token in KV
        self._cached = 0  # tokens of the text in KV, from there on
        self._guesses = ConfidentGuesses(model.chances)
        self._idle_tokens = 0
        self._blocks: BlockIds | None = None

    @property
    def outlook(self) -> Outlook | None:
        """What a guess is expected to bring, and what it takes."""
        model = self._model
        seconds = model.times.predict(None, 0, 1)
        unread = self._unread
        setup = 0.0
        if unread > READ_ROWS:
            setup = unread * model.times.predict(None, 0, READ_ROWS) / READ_ROWS
            unread = 1
        first = model.times.predict(None, 0, max(1, unread)) - seconds
        chance = 1.0 if self._idle_tokens >= RETRY_TOKENS else model.chances.overall.mean
        return Outlook(chance, MOST_GUESSES, seconds, first, setup)

    def propose(self, most: int, context: DraftContext) -> Proposal | None:
        """Return guesses that the small model is confident of."""
        started = time.perf_counter()
        self._idle_tokens = 0
        self._guesses = ConfidentGuesses(self._model.chances)
        blocks = self._take_blocks()
        logits = None if blocks is None else self._read(blocks)
        if blocks is None or logits is None:
            return None
        guesses = self._guesses

        def step(token: int) -> NDArray[np.float32]:
            place = self._cached + guesses.fed
            return self._model.step(blocks, place, [token], self._vocabulary.groups)

        guesses.make(logits, min(most, MOST_GUESSES), context, step)
        seconds = time.perf_counter() - started
        return Proposal(self.name, list(guesses.tokens), list(guesses.claimed), seconds)

    def commit(self, tokens: Sequence[int]) -> None:
        """Learn from the last guesses, keep their KV as far as they were right, append."""
        self._cached += self._guesses.learn(tokens)
        self._guesses = ConfidentGuesses(self._model.chances)
        self._text += tokens
        self._vocabulary.add(tokens)
        self._idle_tokens += len(tokens)

    def close(self) -> None:
        """Give the blocks back."""
        if self._blocks is not None:
            self._model.pool.release(self._blocks)
            self._blocks = None

    @property
    def _unread(self) -> int:
        start = self._next_start()
        cached = self._cached if start == self._start else 0
        return len(self._text) - start - cached

    def _next_start(self) -> int:
        """Return where KV should begin: where it does, or a window back when that is full."""
        room = self._model.capacity_tokens - MOST_GUESSES
        if self._cached and len(self._text) - self._start <= room:
            return self._start
        return max(0, len(self._text) - self._model.window_tokens)

    def _read(self, blocks: BlockIds) -> NDArray[np.float32] | None:
        """Read what was committed since; return the last logits (V,), or None if more is left."""
        start = self._next_start()
        if start != self._start:
            self._start, self._cached = start, 0
        # The last token's logits are wanted again where a step failed after the guesses.
        self._cached = min(self._cached, len(self._text) - start - 1)
        unread = self._text[self._start + self._cached :]
        if max(unread) >= self._model.executor.vocab_size:
            return None
        groups = self._vocabulary.groups
        logits = self._model.step(blocks, self._cached, unread[:READ_ROWS], groups)
        self._cached += len(unread[:READ_ROWS])
        return logits if len(unread) <= READ_ROWS else None

    def _take_blocks(self) -> BlockIds | None:
        """Return the sequence's blocks; None while as many sequences guess as there is room for."""
        if self._blocks is None:
            try:
                self._blocks = self._model.pool.allocate(blocks_for(self._model.capacity_tokens))
            except CapacityError:
                return None
        return self._blocks
