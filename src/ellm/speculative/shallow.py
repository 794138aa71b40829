"""Guesses of the model's own first layers, through a map that `ellm calibrate --shallow` fitted.

Its rows write keys and values of those layers behind the committed ones; the step that checks the
guesses writes over them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ellm.kv.block_pool import BlockIds, blocks_for
from ellm.program.executor import SequenceRows
from ellm.program.exits import ExitExecutor
from ellm.speculative.confidence import ConfidenceChances, ConfidentGuesses
from ellm.speculative.source import DraftContext, Outlook, Proposal
from ellm.speculative.step_times import StepTimes

MOST_GUESSES = 4

_LAST = np.zeros(1, dtype=np.int32)


class ShallowModel:
    """The first layers of a model and what was learnt of their guesses; shared by all sequences."""

    def __init__(
        self, executor: ExitExecutor, *, layer: int, acceptance: float, seconds: float
    ) -> None:
        """Leave `executor`'s program after `layer` layers.

        Args:
            executor: Of the model itself, with an exit at `layer`.
            layer: Layers that a guess runs.
            acceptance: How often the probe found guesses to be right.
            seconds: What the probe found a guess to take.
        """
        self._executor = executor
        self._layer = layer
        self.times = StepTimes()
        self.times.start({1: seconds})
        self.chances = ConfidenceChances(acceptance)

    def open(self) -> ShallowDrafter:
        """Return a drafter for one sequence."""
        return ShallowDrafter(self)

    def step(self, blocks: BlockIds, position: int, token: int) -> NDArray[np.float32]:
        """Run one token at `position` and return its logits (V,)."""
        began = time.perf_counter()
        rows = SequenceRows(blocks[: blocks_for(position + 1)], position, 1)
        tokens = np.array([token], dtype=np.int32)
        logits = self._executor.step_exit(self._layer, tokens, [rows], _LAST)
        self.times.observe(None, position, 1, time.perf_counter() - began)
        first: NDArray[np.float32] = logits[0]
        return first


class ShallowDrafter:
    """Guesses for one sequence, on its own KV blocks."""

    name = "shallow"

    def __init__(self, model: ShallowModel) -> None:
        """Start without a token."""
        self._model = model
        self._last = 0
        self._position = 0
        self._guesses = ConfidentGuesses(model.chances)

    @property
    def outlook(self) -> Outlook | None:
        """What a guess is expected to bring, and what it takes."""
        model = self._model
        seconds = model.times.predict(None, self._position, 1)
        return Outlook(model.chances.overall.mean, MOST_GUESSES, seconds, 0.0)

    def propose(self, most: int, context: DraftContext) -> Proposal | None:
        """Return guesses that the first layers are confident of."""
        started = time.perf_counter()
        guesses = self._guesses = ConfidentGuesses(self._model.chances)

        def step(token: int) -> NDArray[np.float32]:
            return self._model.step(context.blocks, context.start + 1 + guesses.fed, token)

        logits = self._model.step(context.blocks, context.start, self._last)
        guesses.make(logits, min(most, MOST_GUESSES), context, step)
        seconds = time.perf_counter() - started
        return Proposal(self.name, list(guesses.tokens), list(guesses.claimed), seconds)

    def commit(self, tokens: Sequence[int]) -> None:
        """Learn from the last guesses."""
        self._guesses.learn(tokens)
        self._guesses = ConfidentGuesses(self._model.chances)
        self._last = tokens[-1]
        self._position += len(tokens)

    def close(self) -> None:
        """Hold nothing."""
