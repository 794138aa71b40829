"""A benchmark on the native core: steps at one depth leave no trace at the next, to the bit."""

import numpy as np
import pytest

from ellm.config.benchmark import BenchmarkPlan
from ellm.config.engine import KV_TYPES
from ellm.engine.benchmark import Benchmark
from ellm.models import ARCHITECTURES
from tests.support.native_models import native_executor, run_chunks
from tests.support.tiny_models import tiny_model

TEXT = np.random.default_rng(3).integers(0, 131, 900, dtype=np.int32)


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


class Recorded:
    """An executor that keeps the logits of the last row of every step, by its position."""

    def __init__(self, executor):
        self.executor = executor
        self.last = {}
        self.max_rows = executor.max_rows
        self.num_blocks = executor.num_blocks
        self.vocab_size = executor.vocab_size
        self.forget = executor.forget
        self.abort = executor.abort

    def step(self, tokens, rows, logits_rows):
        logits = self.executor.step(tokens, rows, logits_rows)
        (run,) = rows
        if run.count > 1 and len(logits_rows) == 1:
            self.last[run.start + run.count] = logits[-1]
        return logits


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
# Depths at, just before and after the end of a block; decoding that stays in the window, that
# crosses a block and that starts again.
@pytest.mark.parametrize(
    ("depths", "decode_steps"),
    [((512, 700), 24), ((65, 127, 448, 575, 640, 702), 64), ((500, 511, 700), 150)],
)
def test_steps_at_a_depth_change_no_bit_further_on(architecture, kv_type, depths, decode_steps):
    model = tiny_model(architecture, ("q8_0", "q4_0"), num_layers=2)
    direct = run_chunks(native_executor(model, kv_type=kv_type), TEXT[:702], [512])
    plan = BenchmarkPlan(
        depths_tokens=depths, decode_steps=decode_steps, row_counts=(1, 8, 64), repetitions=2
    )
    executor = Recorded(native_executor(model, kv_type=kv_type))
    benchmark = Benchmark(
        executor, TEXT, plan, bytes_per_token=lambda _: 1, progress=lambda _: None
    )
    assert [result.depth_tokens for result in benchmark.results()] == list(depths)
    assert set(depths) == set(executor.last)
    for depth, logits in executor.last.items():
        np.testing.assert_array_equal(logits, direct[depth - 1])


def test_same_executor_can_be_measured_again():
    executor = native_executor(tiny_model("llama"), kv_type="int8")
    plan = BenchmarkPlan(depths_tokens=(100, 333), decode_steps=2, row_counts=(2,), repetitions=1)
    for _ in range(2):
        benchmark = Benchmark(
            executor,
            TEXT,
            plan,
            bytes_per_token=executor.bytes_per_token,
            progress=lambda _: None,
        )
        results = list(benchmark.results())
        assert results[1].bytes_per_token > results[0].bytes_per_token > 0
