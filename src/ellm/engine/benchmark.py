"""Times a model at growing depths of one text: reading, decoding and steps of several rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ellm.config.benchmark import RUN_AHEAD_TOKENS, WARM_UP_STEPS, BenchmarkPlan
from ellm.engine.benchmark_outputs import BenchmarkProgress, DepthResult, StepProgress, Timings
from ellm.engine.outputs import PromptProgress
from ellm.errors import AbortedError, RequestError
from ellm.hardware.memory import peak_rss_bytes
from ellm.kv.block_pool import BlockIds, BlockPool, blocks_for
from ellm.program.executor import NUM_COUNTS, Executor, RowChoices, SequenceRows, Tokens
from ellm.sparse.counts import ChoiceLog, ChoiceTotals
from ellm.sparse.policy import AttentionPolicy
from ellm.sparse.profile import SparseProfile


class Benchmark:
    """Reads a text once in one sequence, and times steps at each depth on the way.

    What the steps at a depth write to KV is written again by the next chunk of the text, so no
    depth sees anything of those before it.
    """

    def __init__(
        self,
        executor: Executor,
        tokens: Tokens,
        plan: BenchmarkPlan,
        *,
        bytes_per_token: Callable[[int], int],
        bytes_saved: Callable[[ChoiceTotals], int] = lambda _totals: 0,
        profile: SparseProfile | None = None,
        progress: BenchmarkProgress,
    ) -> None:
        """Prepare to run `plan` once.

        Args:
            executor: Nobody else may use it meanwhile.
            tokens: The text (n,), int32; at least as many tokens as the deepest depth.
            plan: What to time.
            bytes_per_token: Returns the bytes read to decode one token at a depth.
            bytes_saved: Returns the bytes that rows did not read by choosing.
            profile: What calibration found about the model, if it was calibrated.
            progress: Called after every step.

        Raises:
            RequestError: There are fewer tokens than the deepest depth.
        """
        if len(tokens) < plan.depths_tokens[-1]:
            raise RequestError(
                f"the text has {len(tokens)} tokens, the deepest depth needs "
                f"{plan.depths_tokens[-1]}"
            )
        self._executor = executor
        self._tokens = tokens
        self._plan = plan
        self._bytes_per_token = bytes_per_token
        self._bytes_saved = bytes_saved
        self._attention = AttentionPolicy(plan.attention, profile)
        self._choices = ChoiceLog()
        self._progress = progress
        self._rows_per_chunk = min(plan.rows_per_chunk, executor.max_rows)
        self._blocks: BlockIds = np.empty(0, dtype=np.int32)
        self._read_tokens = 0
        self._read_seconds = 0.0
        self._stopped = threading.Event()

    def results(self) -> Iterator[DepthResult]:
        """Yield the figures of each depth as soon as it was timed, the least depth first.

        Raises:
            CapacityError: The executor has too few KV blocks, or takes too few rows.
            AbortedError: `abort` was called.
        """
        pool = BlockPool(self._executor.num_blocks, on_free=self._executor.forget)
        self._blocks = pool.allocate(blocks_for(self._plan.context_tokens))
        try:
            # Reads every weight once: from disk, that would count as the first chunk's time.
            self._timed(0, self._tokens[:1], num_logits=1)
            for depth in self._plan.depths_tokens:
                yield self._measured(depth)
        finally:
            pool.release(self._blocks)

    def abort(self) -> None:
        """End `results` within an op, from any thread."""
        self._stopped.set()
        self._executor.abort()

    def _measured(self, depth: int) -> DepthResult:
        plan = self._plan
        first = self._read_to(depth)
        total = WARM_UP_STEPS + plan.decode_steps + (1 + plan.repetitions) * len(plan.row_counts)
        counter = _StepCounter(self._progress, depth, total)
        self._choices = ChoiceLog()
        answer, decode = self._decode(depth, first, counter)
        choices = self._choices.totals
        saved = self._bytes_saved(choices) // max(1, choices.rows)
        return DepthResult(
            depth_tokens=depth,
            prefill_seconds=self._read_seconds,
            decode=decode,
            steps=self._steps_by_rows(depth, answer, counter),
            bytes_per_token=self._bytes_per_token(depth) - saved,
            peak_rss_bytes=peak_rss_bytes(),
            choices=choices,
        )

    def _read_to(self, depth: int) -> int:
        """Read the text up to `depth` and return the likeliest token after it."""
        total = self._plan.depths_tokens[-1]
        while True:
            start = self._read_tokens
            end = min(start + self._rows_per_chunk, depth)
            seconds, following = self._timed(
                start, self._tokens[start:end], num_logits=int(end == depth)
            )
            self._read_tokens = end
            self._read_seconds += seconds
            rate = end / self._read_seconds
            self._progress(PromptProgress(end, total, rate, (total - end) / rate))
            if end == depth:
                return int(following[0])

    def _decode(self, depth: int, first: int, counter: _StepCounter) -> tuple[list[int], Timings]:
        """Time one-row steps, the first of which reads `first`; returns what they read, too."""
        durations: list[float] = []
        answer = [first]
        for number in range(WARM_UP_STEPS + self._plan.decode_steps):
            ahead = number % RUN_AHEAD_TOKENS
            if not ahead:
                answer = [first]
            seconds, following = self._timed(
                depth + ahead, answer[-1:], num_logits=1, answering=True
            )
            answer.append(int(following[0]))
            durations.append(seconds)
            counter.add()
        return answer, Timings(tuple(durations[WARM_UP_STEPS:]))

    def _steps_by_rows(
        self, depth: int, answer: Sequence[int], counter: _StepCounter
    ) -> dict[int, Timings]:
        """Time steps that verify a chain of the answer, each from `depth` on.

        The numbers of rows take turns, so that a disturbance meets all of them; the first round
        is not counted.
        """
        durations: dict[int, list[float]] = {rows: [] for rows in self._plan.row_counts}
        for _ in range(1 + self._plan.repetitions):
            for rows, taken in durations.items():
                # A short answer is repeated: which tokens they are makes no step slower.
                chain = np.resize(np.array(answer, dtype=np.int32), rows)
                seconds, _ = self._timed(depth, chain, num_logits=rows, answering=True)
                taken.append(seconds)
                counter.add()
        return {rows: Timings(tuple(taken[1:])) for rows, taken in durations.items()}

    def _timed(
        self,
        start: int,
        tokens: Tokens | Sequence[int],
        *,
        num_logits: int,
        answering: bool = False,
    ) -> tuple[float, Tokens]:
        """Run a step and return its seconds and the likeliest tokens (n,) after its last n rows.

        Args:
            start: Position of the first row.
            tokens: Token ids (T,).
            num_logits: n, at most T.
            answering: The rows are those of an answer, and may choose what they read.

        Raises:
            AbortedError: `abort` was called.
        """
        if self._stopped.is_set():
            raise AbortedError("the benchmark was stopped")
        begin = time.perf_counter()
        count = len(tokens)
        rule = self._attention.rule_at(start) if answering else None
        choices = None if rule is None else RowChoices(rule, np.zeros((count, NUM_COUNTS)))
        blocks = self._blocks[: blocks_for(start + count)]
        rows = [SequenceRows(blocks, start, count, choices)]
        asked = np.arange(count - num_logits, count, dtype=np.int32)
        logits = self._executor.step(np.asarray(tokens, dtype=np.int32), rows, asked)
        likeliest = logits.argmax(axis=-1).astype(np.int32)
        seconds = time.perf_counter() - begin
        if choices is not None:
            self._choices.add(choices.counts, choices.rule.estimate)
        return seconds, likeliest


class _StepCounter:
    """Tells how many of the steps at a depth were run."""

    def __init__(self, progress: BenchmarkProgress, depth: int, total: int) -> None:
        self._progress = progress
        self._depth = depth
        self._total = total
        self._done = 0

    def add(self) -> None:
        self._done += 1
        self._progress(StepProgress(self._depth, self._done, self._total))
