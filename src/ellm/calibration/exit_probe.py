"""A probe of about a minute: fits exits from shallow layers, and measures whether drafts pay."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ellm.calibration.exit_fit import ExitMap, NormalEquations, exit_layers, fit_exit, fitting_bytes
from ellm.calibration.exit_measure import (
    ANSWER_TOKENS,
    DEPTH_TOKENS,
    TIMED_ROUNDS,
    Clock,
    answer,
    count_agreed,
    time_exits,
)
from ellm.calibration.exit_texts import CHOOSING_PIECES, ProbeTexts, blocks_of_prompts
from ellm.calibration.plan import PIECE_TOKENS
from ellm.errors import AbortedError, UnsupportedError
from ellm.kv.block_pool import blocks_for
from ellm.program.executor import Executor, Floats, SequenceRows, Tokens
from ellm.program.exit_figures import MAX_CHAIN, DepthFigures, ExitFigures
from ellm.program.exit_store import ShallowExit
from ellm.program.exits import ExitExecutor, stored_map
from ellm.program.memory import exits_bytes
from ellm.program.ops import Program

PROBE_SECONDS = 60.0
"""What a probe aims at; a model that reads slowly takes longer."""
# Of the time: the rest goes to answers, to checking the exits on them, and to timing.
_LEARNING_SHARE = 0.55
_CHECKED_SHARE = 0.9
_LEAST_PIECES = 2

Report = Callable[[float, str], None]
"""Called with the share of the probe that is done, and what is being done."""


class ExitProbe:
    """Fits and measures the exits of one loaded model."""

    def __init__(
        self,
        executor: Executor,
        texts: ProbeTexts,
        fingerprint: str,
        *,
        report: Report,
        seconds: float = PROBE_SECONDS,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Prepare to run once.

        Args:
            executor: Nobody else may use it meanwhile; the exits stay in it.
            texts: What to fit to, and to check on.
            fingerprint: Of the model file.
            report: Called as the probe goes on.
            seconds: Aim for the whole of it.
            clock: Returns seconds.

        Raises:
            UnsupportedError: The model has one layer, or the executor no exits.
        """
        if not isinstance(executor, ExitExecutor):
            raise UnsupportedError("this executor runs whole steps only: there are no exits")
        self._executor = executor
        self._layers = exit_layers(executor.num_layers)
        if not self._layers:
            raise UnsupportedError("a model of one layer has no shallow layers to leave after")
        self._texts = texts
        self._fingerprint = fingerprint
        self._report = report
        self._learning_seconds = _LEARNING_SHARE * seconds
        self._clock = clock
        self._learnt_tokens = 0
        self._stopped = threading.Event()

    def results(self) -> Iterator[ShallowExit]:
        """Yield the one result: the exit that gains most.

        Raises:
            AbortedError: `abort` was called.
        """
        maps = self._fit()
        for layer, found in maps.items():
            self._executor.add_exit(layer, found.weight, found.bias)
        agreed, positions = self._check()
        by_rows, by_exit = self._time()
        figures = ExitFigures(
            num_layers=self._executor.num_layers,
            learnt_tokens=self._learnt_tokens,
            depth_tokens=DEPTH_TOKENS,
            step_seconds=by_rows,
            depths=tuple(
                DepthFigures(layer=layer, agreed=same, positions=positions, exit_seconds=seconds)
                for layer, same, seconds in zip(self._layers, agreed, by_exit, strict=True)
            ),
        )
        best = figures.best.layer
        yield ShallowExit(
            fingerprint=self._fingerprint,
            layer=best,
            weight=stored_map(maps[best].weight),
            bias=maps[best].bias,
            figures=figures,
        )

    def abort(self) -> None:
        """End `results` soon, from any thread."""
        self._stopped.set()
        self._executor.abort()

    def _fit(self) -> dict[int, ExitMap]:
        """Read pieces for as long as there is time, and fit the exits to what they left."""
        equations = [NormalEquations(self._executor.hidden_size) for _ in self._layers]
        started = self._clock()
        self._tell(0.0, "learning")
        held_out = self._hidden_of(self._texts.choosing)
        for count, piece in enumerate(self._texts.learning):
            share = (self._clock() - started) / self._learning_seconds
            if count >= _LEAST_PIECES and share >= 1:
                break
            self._tell(_LEARNING_SHARE * min(1.0, share), "learning")
            *rows, targets = self._hidden(piece)
            for sums, at_layer in zip(equations, rows, strict=True):
                sums.add(at_layer, targets)
            self._learnt_tokens += piece.size
        *rows, targets = held_out
        maps: dict[int, ExitMap] = {}
        for layer, sums, at_layer in zip(self._layers, equations, rows, strict=True):
            self._tell(_LEARNING_SHARE, f"fitting layer {layer}")
            maps[layer] = fit_exit(sums, at_layer, targets)
        return maps

    def _check(self) -> tuple[list[int], int]:
        """Return how often each exit agrees with the model on its answers, and of how many."""
        prompts = self._texts.prompts
        blocks = blocks_of_prompts(self._executor.num_blocks, len(prompts), ANSWER_TOKENS)
        prompts = prompts[: len(blocks)]
        steps = len(prompts) * (1 + len(self._layers)) + ANSWER_TOKENS
        on_step = self._steps("checking", _LEARNING_SHARE, _CHECKED_SHARE, steps)
        answers = answer(self._executor, prompts, blocks, on_step)
        agreed = [
            count_agreed(self._executor, layer, answers, blocks, on_step) for layer in self._layers
        ]
        return agreed, len(prompts) * ANSWER_TOKENS

    def _time(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        blocks = np.arange(blocks_for(DEPTH_TOKENS + MAX_CHAIN + 1), dtype=np.int32)
        steps = (1 + TIMED_ROUNDS) * (MAX_CHAIN + 1 + len(self._layers))
        on_step = self._steps("timing", _CHECKED_SHARE, 1.0, steps)
        return time_exits(self._executor, self._layers, blocks, self._clock, on_step)

    def _hidden(self, piece: Tokens) -> Floats:
        """Return the rows of a piece (exits + 1, T, E), as the exits and the head read them."""
        size = min(piece.size, self._executor.max_rows)
        blocks = np.arange(blocks_for(piece.size), dtype=np.int32)
        layers = [*self._layers, self._executor.num_layers]
        parts: list[Floats] = []
        for start in range(0, piece.size, size):
            self._check_stopped()
            part = piece[start : start + size]
            rows = [SequenceRows(blocks, start, part.size)]
            parts.append(self._executor.step_hidden(part, rows, layers))
        return np.concatenate(parts, axis=1)

    def _hidden_of(self, pieces: Sequence[Tokens]) -> Floats:
        return np.concatenate([self._hidden(piece) for piece in pieces], axis=1)

    def _steps(self, what: str, begin: float, end: float, total: int) -> Callable[[], None]:
        """Return what to call after each of `total` steps between two shares of the probe."""
        count = itertools.count(1)

        def on_step() -> None:
            self._tell(begin + (end - begin) * next(count) / total, what)

        return on_step

    def _tell(self, share: float, what: str) -> None:
        self._report(share, what)
        self._check_stopped()

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise AbortedError("the probe was stopped")


def probe_bytes(program: Program, max_rows: int) -> int:
    """Return the bytes that a probe takes beside the model."""
    layers = exit_layers(program.num_layers)
    size = program.hidden_size
    rows = (len(layers) + 1) * PIECE_TOKENS * size * 20  # float32, float64 and weighted float64
    logits = ANSWER_TOKENS * program.vocab_size * 4
    fitting = fitting_bytes(size, len(layers), CHOOSING_PIECES * PIECE_TOKENS)
    exits = exits_bytes(program, max_rows=max_rows, num_exits=len(layers))
    return rows + logits + fitting + exits
