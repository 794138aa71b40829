import itertools

import numpy as np
import pytest

from ellm.config.benchmark import RUN_AHEAD_TOKENS, WARM_UP_STEPS, BenchmarkPlan
from ellm.engine import benchmark as module
from ellm.engine.benchmark import Benchmark
from ellm.engine.benchmark_outputs import StepProgress, Timings
from ellm.engine.outputs import PromptProgress
from ellm.errors import AbortedError, CapacityError, NativeError, RequestError
from tests.support.fake_executor import FakeExecutor, expected_greedy

TEXT = np.random.default_rng(5).integers(0, 258, 400, dtype=np.int32)
PLAN = BenchmarkPlan(
    depths_tokens=(70, 100, 301),
    decode_steps=5,
    row_counts=(1, 3, 8),
    repetitions=4,
    rows_per_chunk=32,
)


class Recorder(FakeExecutor):
    """Keeps start, tokens and number of logits of every step."""

    def __init__(self, **options):
        super().__init__(**options)
        self.runs = []

    def step(self, tokens, rows, logits_rows):
        (run,) = rows
        self.runs.append((run.start, tokens.tolist(), len(logits_rows)))
        return super().step(tokens, rows, logits_rows)

    def split(self, plan):
        """Return the runs of the text, and those at each depth."""
        chunks, at_depths = [], {depth: [] for depth in plan.depths_tokens}
        per_depth = WARM_UP_STEPS + plan.decode_steps
        per_depth += (1 + plan.repetitions) * len(plan.row_counts)
        runs = iter(self.runs[1:])
        for depth in plan.depths_tokens:
            while not chunks or sum(len(tokens) for _, tokens, _ in chunks) < depth:
                chunks.append(next(runs))
            at_depths[depth] = list(itertools.islice(runs, per_depth))
        assert list(runs) == []
        return chunks, at_depths


def measured(executor, plan=PLAN, *, text=TEXT, progress=lambda _: None):
    benchmark = Benchmark(
        executor, text, plan, bytes_per_token=lambda depth: 1000 + depth, progress=progress
    )
    return list(benchmark.results())


def test_text_is_read_once_in_chunks_that_end_at_each_depth():
    executor = Recorder()
    measured(executor)
    chunks, _ = executor.split(PLAN)
    assert [start for start, _, _ in chunks[:5]] == [0, 32, 64, 70, 100]
    assert np.concatenate([tokens for _, tokens, _ in chunks]).tolist() == TEXT[:301].tolist()
    assert max(len(tokens) for _, tokens, _ in chunks) == 32
    # As in a prompt, only the last row of what is read is asked what follows.
    asked = [start + len(tokens) for start, tokens, logits in chunks if logits]
    assert asked == [70, 100, 301]


def test_one_row_is_run_before_anything_is_timed():
    executor = Recorder()
    measured(executor)
    assert executor.runs[0] == (0, [TEXT[0]], 1)


def test_decoding_feeds_the_greedy_answer_to_the_text_so_far():
    # The fake's logits depend on every token in KV: a trace of an earlier depth would show.
    executor = Recorder()
    measured(executor)
    for depth, runs in executor.split(PLAN)[1].items():
        decode = runs[: WARM_UP_STEPS + PLAN.decode_steps]
        assert [start for start, _, _ in decode] == list(range(depth, depth + 7))
        assert [tokens[0] for _, tokens, _ in decode] == expected_greedy(TEXT[:depth], 7)
        assert {(len(tokens), logits) for _, tokens, logits in decode} == {(1, 1)}


def test_steps_of_several_rows_verify_the_answer_and_take_turns():
    executor = Recorder()
    measured(executor)
    for depth, runs in executor.split(PLAN)[1].items():
        steps = runs[WARM_UP_STEPS + PLAN.decode_steps :]
        assert [logits for _, _, logits in steps] == [1, 3, 8] * 5
        answer = expected_greedy(TEXT[:depth], 8)
        for start, tokens, logits in steps:
            assert (start, tokens) == (depth, answer[:logits])


def test_long_decoding_starts_again_before_it_leaves_the_window():
    plan = BenchmarkPlan(depths_tokens=(70,), decode_steps=150, row_counts=(1,), repetitions=1)
    executor = Recorder()
    (result,) = measured(executor, plan)
    decode = executor.split(plan)[1][70][:152]
    assert [start - 70 for start, _, _ in decode] == [i % RUN_AHEAD_TOKENS for i in range(152)]
    assert [tokens[0] for _, tokens, _ in decode[128:]] == expected_greedy(TEXT[:70], 24)
    assert len(result.decode.seconds) == 150


def test_a_short_answer_is_repeated_for_long_chains():
    plan = BenchmarkPlan(depths_tokens=(9,), decode_steps=1, row_counts=(64,), repetitions=1)
    executor = Recorder()
    measured(executor, plan)
    _, chain, _ = executor.runs[-1]
    assert chain == (expected_greedy(TEXT[:9], 4) * 16)


def test_figures_are_those_of_the_clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    executor = Recorder()

    def take_time(number):
        now[0] += 0.5 if number == 1 else len(executor.runs[-1][1]) + executor.runs[-1][2] / 8

    executor.before_step = take_time
    results = measured(executor)
    assert [result.depth_tokens for result in results] == [70, 100, 301]
    assert [result.prefill_seconds for result in results] == [70.125, 100.25, 301.375]
    for result in results:
        assert result.decode == Timings((1.125,) * 5)
        assert result.steps == {rows: Timings((rows * 1.125,) * 4) for rows in (1, 3, 8)}
        assert result.bytes_per_token == 1000 + result.depth_tokens
        assert result.peak_rss_bytes > 0
    first = results[0]
    assert first.prefill_tokens_per_second == 70 / 70.125
    assert first.decode_tokens_per_second == 1 / 1.125
    assert first.gb_per_s == 1070 / 1.125 / 1e9


def test_warm_up_steps_are_not_counted(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    plan = BenchmarkPlan(depths_tokens=(9,), decode_steps=2, row_counts=(2, 3), repetitions=2)
    # The weights, the text, two of decoding and one of each number of rows are slow.
    slow = {1, 2, 3, 4, 7, 8}

    def take_time(number):
        now[0] += 100 if number in slow else 1

    (result,) = measured(FakeExecutor(before_step=take_time), plan)
    assert result.prefill_seconds == 100
    assert result.decode == Timings((1.0, 1.0))
    assert result.steps == {2: Timings((1.0, 1.0)), 3: Timings((1.0, 1.0))}


def test_one_slow_step_moves_the_range_and_not_the_median():
    times = Timings((0.2, 0.1, 5.0, 0.3, 0.2))
    assert times.median_seconds == 0.2
    assert times.range_seconds == (0.1, 5.0)


def test_progress_tells_tokens_read_and_steps_run():
    told = []
    measured(FakeExecutor(), progress=told.append)
    reading = [step for step in told if isinstance(step, PromptProgress)]
    assert [step.done_tokens for step in reading[:4]] == [32, 64, 70, 100]
    assert {step.total_tokens for step in reading} == {301}
    assert all(step.tokens_per_second > 0 for step in reading)
    assert (reading[-1].done_tokens, reading[-1].seconds_left) == (301, 0)
    timing = [step for step in told if isinstance(step, StepProgress)]
    assert timing == [StepProgress(d, i, 22) for d in PLAN.depths_tokens for i in range(1, 23)]


@pytest.mark.parametrize("step", [1, 2, 9, 30])
def test_a_benchmark_that_fails_gives_its_blocks_back(step):
    def fail(number):
        if number == step:
            raise NativeError("lost")

    executor = FakeExecutor(before_step=fail)
    with pytest.raises(NativeError):
        measured(executor)
    assert sorted(executor.forgotten) == [0, 1, 2, 3, 4]


def test_abort_ends_the_running_step_and_runs_no_other():
    executor = FakeExecutor()
    benchmark = Benchmark(
        executor, TEXT, PLAN, bytes_per_token=lambda _: 0, progress=lambda _: None
    )
    executor.before_step = lambda number: benchmark.abort() if number == 10 else None
    results = benchmark.results()
    with pytest.raises(AbortedError):
        next(results)
    assert len(executor.steps) == 10
    assert executor.forgotten


def test_abort_between_steps_runs_no_other():
    executor = FakeExecutor()
    benchmark = Benchmark(
        executor, TEXT, PLAN, bytes_per_token=lambda _: 0, progress=lambda _: benchmark.abort()
    )
    with pytest.raises(AbortedError):
        list(benchmark.results())
    assert len(executor.steps) == 2


def test_too_little_text_room_or_rows_is_refused():
    with pytest.raises(RequestError, match="300 tokens, the deepest depth needs 301"):
        measured(FakeExecutor(), text=TEXT[:300])
    executor = FakeExecutor(num_blocks=4)
    with pytest.raises(CapacityError, match="5 KV blocks"):
        measured(executor)
    assert executor.steps == []
    with pytest.raises(CapacityError, match="a step of 8 rows"):
        measured(FakeExecutor(max_rows=4))


def test_chunks_are_no_larger_than_the_executor_takes():
    plan = BenchmarkPlan(depths_tokens=(70,), row_counts=(1,))
    executor = Recorder(max_rows=16)
    measured(executor, plan)
    assert max(len(tokens) for _, tokens, _ in executor.runs) == 16
