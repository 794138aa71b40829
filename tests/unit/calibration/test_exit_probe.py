"""A probe of tiny models: where upper layers do nothing drafts pay, where they do not is told."""

from __future__ import annotations

import numpy as np
import pytest

from ellm.calibration.exit_probe import ExitProbe
from ellm.calibration.exit_texts import ProbeTexts
from ellm.errors import AbortedError, UnsupportedError
from ellm.models import ARCHITECTURES
from ellm.program.executor import SequenceRows, Tokens
from ellm.program.exit_store import ShallowExit
from ellm.program.numpy_executor import NumpyExecutor
from tests.support.exit_models import TimedExecutor, busy, idle_above
from tests.support.fake_executor import FakeExecutor
from tests.support.tiny_models import TinyModel, tiny_model


def pieces(count: int, size: int, seed: int) -> tuple[Tokens, ...]:
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(0, 131, size, dtype=np.int32) for _ in range(count))


TEXTS = ProbeTexts(
    learning=pieces(6, 256, 1), choosing=pieces(2, 256, 2), prompts=pieces(4, 128, 3)
)
STEPS = 6 + 2 + 4 + 64 + 3 * 4 + 12 * 8


def timed(model: TinyModel, num_blocks: int = 12) -> TimedExecutor:
    return TimedExecutor(NumpyExecutor(model.program, model.weights, num_blocks))


def probed(executor: TimedExecutor, seconds: float = 1e9) -> ShallowExit:
    probe = ExitProbe(
        executor,
        TEXTS,
        "0123",
        report=lambda _share, _what: None,
        seconds=seconds,
        clock=executor.clock,
    )
    (found,) = probe.results()
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_exit_before_layers_that_do_nothing_always_agrees_and_pays(architecture: str) -> None:
    executor = timed(idle_above(architecture, 1, num_layers=4))
    found = probed(executor)
    assert [depth.acceptance for depth in found.figures.depths] == [1, 1, 1]
    # 5 tokens for 4 drafts and one step of 5 rows.
    assert found.layer == 1
    assert found.figures.best_chain(found.figures.best) == 4
    assert found.figures.gain(found.figures.best, 4) == pytest.approx(5 / (4 * 0.325 + 1.2))
    assert found.pays
    np.testing.assert_array_equal(found.weight, np.eye(found.weight.shape[0]))
    np.testing.assert_array_equal(found.bias, 0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_exits_of_a_random_model_do_not_pay(architecture: str) -> None:
    found = probed(timed(busy(architecture, num_layers=4)))
    assert not found.pays
    assert found.figures.verdict().startswith("does not pay: at layer ")
    assert max(depth.acceptance for depth in found.figures.depths) < 0.7


def test_only_exits_above_which_nothing_happens_agree() -> None:
    found = probed(timed(idle_above("llama", 2, num_layers=4)))
    low, middle, high = (depth.acceptance for depth in found.figures.depths)
    assert low < 0.5
    assert (middle, high) == (1, 1)
    assert found.layer == 2
    assert found.pays


def test_costs_are_those_of_steps_beside_each_other() -> None:
    figures = probed(timed(tiny_model("llama", num_layers=4))).figures
    assert figures.step_seconds == pytest.approx((1.0, 1.05, 1.1, 1.15, 1.2))
    assert [depth.exit_seconds for depth in figures.depths] == pytest.approx([0.325, 0.55, 0.775])
    assert [depth.positions for depth in figures.depths] == [4 * 64] * 3
    assert (figures.learnt_tokens, figures.depth_tokens) == (6 * 256, 192)


@pytest.mark.parametrize(("seconds", "learnt"), [(1.0, 2), (130.0, 4), (1e9, 6)])
def test_it_learns_for_as_long_as_there_is_time(seconds: float, learnt: int) -> None:
    # Reading a piece of 256 tokens takes 13.75 seconds; 55 % of the time are for that, and two
    # pieces are held out.
    found = probed(timed(tiny_model("llama", num_layers=2)), seconds)
    assert found.figures.learnt_tokens == learnt * 256


def test_prompts_are_as_many_as_there_are_blocks_for() -> None:
    found = probed(timed(tiny_model("llama", num_layers=2), num_blocks=7))
    assert found.figures.depths[0].positions == 2 * 64


def test_the_exit_that_is_kept_is_the_one_that_was_measured() -> None:
    model = tiny_model("llama", num_layers=3)
    executor, again = timed(model), timed(model)
    found = probed(executor)
    assert found.fingerprint == "0123"
    again.add_exit(found.layer, found.weight.astype(np.float32), found.bias)
    rows = [SequenceRows(np.arange(2, dtype=np.int32), 0, 100)]
    step = (found.layer, TEXTS.prompts[0][:100], rows, np.arange(100, dtype=np.int32))
    np.testing.assert_array_equal(again.step_exit(*step), executor.step_exit(*step))


def test_progress_goes_from_nothing_to_all() -> None:
    executor = timed(tiny_model("llama", num_layers=4))
    told: list[tuple[float, str]] = []
    probe = ExitProbe(
        executor,
        TEXTS,
        "0123",
        report=lambda share, what: told.append((share, what)),
        seconds=200.0,
        clock=executor.clock,
    )
    list(probe.results())
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == pytest.approx(1)
    words = [what for _, what in told]
    assert list(dict.fromkeys(words)) == [
        "learning",
        "fitting layer 1",
        "fitting layer 2",
        "fitting layer 3",
        "checking",
        "timing",
    ]


@pytest.mark.parametrize("stop_at", [0, 2, 3, 7, 20, 80, 120])
def test_abort_ends_it_at_the_next_step(stop_at: int) -> None:
    executor = timed(tiny_model("llama", num_layers=4))

    def stop(_share: float, _what: str) -> None:
        if executor.steps >= stop_at:
            probe.abort()

    probe = ExitProbe(executor, TEXTS, "0123", report=stop, seconds=1e9, clock=executor.clock)
    with pytest.raises(AbortedError):
        list(probe.results())
    assert executor.steps == stop_at < STEPS


def test_models_and_executors_without_exits_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="one layer"):
        ExitProbe(
            timed(tiny_model("llama", num_layers=1)),
            TEXTS,
            "0123",
            report=lambda _share, _what: None,
        )
    with pytest.raises(UnsupportedError, match="whole steps only"):
        ExitProbe(FakeExecutor(), TEXTS, "0123", report=lambda _share, _what: None)
