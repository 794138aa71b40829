"""What heads saw follows from the masses of blocks, exact and scanned, of every fourth row."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from ellm.calibration.observing import ROW_STRIDE, HeadObservations, observe_tail
from ellm.calibration.plan import MASSES
from ellm.calibration.shape import Shape
from ellm.program.executor import BLOCK_TOKENS, ChoiceRule, Estimate, Observation
from ellm.program.numpy_choice import chosen_blocks
from tests.support.tiny_models import tiny_model

LAYERS, KV_HEADS, HEADS = 2, 2, 4
POSITION = 30 * BLOCK_TOKENS
SHAPE = Shape(num_layers=LAYERS, num_kv_heads=KV_HEADS, num_heads=HEADS, choosing=(True, True))


def even(row: int, blocks: int) -> NDArray[np.float64]:
    """Return masses (L, Hq, B) of which every block has as much."""
    del row
    return np.full((LAYERS, HEADS, blocks), 3.0)


@dataclass
class WrittenReplay:
    """Rows see what is written down: masses by row and number of blocks; scans by a factor."""

    masses: object = even
    factor: float = 1.0
    sliding: tuple[int, ...] = ()
    runs: list[tuple[int, int, bool]] = field(default_factory=list)

    def run(
        self, token: int, position: int, rule: ChoiceRule, observed: Observation | None
    ) -> tuple[NDArray[np.float32], None]:
        assert rule == ChoiceRule(Estimate.EXACT, mass=1.0)
        self.runs.append((token, position, observed is not None))
        if observed is not None:
            blocks = observed.exact.shape[-1]
            exact = np.log(self.masses(len(self.runs) - 1, blocks))
            exact[list(self.sliding)] = 0
            observed.exact[0] = exact
            observed.scan[0] = exact - np.log(self.factor)
            observed.scan[0][list(self.sliding)] = 0
        return np.array([token, position], dtype=np.float32), None


def observe(
    replay: WrittenReplay, *, rows: int = 8, shape: Shape = SHAPE, position: int = POSITION
) -> HeadObservations:
    _, found = observe_tail(replay, list(range(rows)), position, shape, lambda: None)  # type: ignore[arg-type]
    return found


def test_every_row_is_run_and_every_fourth_looked_at() -> None:
    replay, heard = WrittenReplay(), []
    logits, _ = observe_tail(replay, [5, 6, 7, 8, 9], POSITION, SHAPE, lambda: heard.append(1))  # type: ignore[arg-type]
    assert ROW_STRIDE == 4
    assert replay.runs == [
        (token, POSITION + i, i in (0, 4)) for i, token in enumerate((5, 6, 7, 8, 9))
    ]
    np.testing.assert_array_equal(
        logits, [[t, POSITION + i] for i, (t, _, _) in enumerate(replay.runs)]
    )
    assert len(heard) == 5


@pytest.mark.parametrize("factor", [1.0, 0.5, 3.0])
def test_scales_are_what_the_scan_is_to_be_multiplied_with(factor: float) -> None:
    np.testing.assert_allclose(observe(WrittenReplay(factor=factor)).scales, factor, rtol=1e-5)


def test_scales_are_the_geometric_mean_over_rows() -> None:
    replay = WrittenReplay()
    replay.masses = lambda row, blocks: even(row, blocks) * (1.0 if row else 4.0)

    class Off(WrittenReplay):
        def run(self, token, position, rule, observed):
            self.factor = 8.0 if len(self.runs) == 0 else 2.0
            return super().run(token, position, rule, observed)

    np.testing.assert_allclose(observe(Off()).scales, 4.0, rtol=1e-5)


def test_scales_leave_out_the_blocks_that_are_always_read() -> None:
    class Off(WrittenReplay):
        def run(self, token, position, rule, observed):
            found = super().run(token, position, rule, observed)
            if observed is not None:
                observed.scan[..., 0] += 5.0
                observed.scan[..., -9:] -= 5.0
            return found

    np.testing.assert_allclose(observe(Off(factor=1.5)).scales, 1.5, rtol=1e-5)


def test_beyond_the_window_is_the_largest_share_of_a_head_in_any_row() -> None:
    def masses(row: int, blocks: int) -> NDArray[np.float64]:
        found = np.zeros((LAYERS, HEADS, blocks)) + 1e-12
        found[..., -1] = 1.0
        # One head of the first group in one layer, in one row that is looked at.
        found[1, 1, 12] = 0.25 if row == 4 else 1e-12
        return found

    found = observe(WrittenReplay(masses))
    expected = np.zeros((LAYERS, KV_HEADS))
    expected[1, 0] = 0.2
    np.testing.assert_allclose(found.beyond_window, expected, atol=1e-6)


def test_what_a_mass_reads_is_the_share_of_the_blocks_to_choose_from() -> None:
    random = np.random.default_rng(1)
    drawn = random.lognormal(0, 2, (LAYERS, HEADS, 31))
    found = observe(WrittenReplay(lambda _row, _blocks: drawn))
    shares = (drawn / drawn.sum(axis=-1, keepdims=True))[..., :30].astype(np.float32)
    for layer in range(LAYERS):
        for kv_head in range(KV_HEADS):
            group = shares[layer, 2 * kv_head : 2 * kv_head + 2]
            for i, mass in enumerate(MASSES):
                read = chosen_blocks(ChoiceRule(Estimate.SCAN, mass), group)[1:22].mean()
                assert found.read[layer, kv_head, i] == pytest.approx(read, abs=1e-9)
    assert (np.diff(found.read, axis=-1) >= 0).all()
    assert found.read[..., 0].max() < found.read[..., -1].min()


def test_a_row_without_blocks_to_choose_from_reads_all() -> None:
    found = observe(WrittenReplay(), position=9 * BLOCK_TOKENS)
    assert (found.read == 1).all()
    assert (found.scales == 1).all()
    assert (found.beyond_window == 0).all()


def test_layers_with_a_sliding_window_call_for_nothing() -> None:
    shape = Shape(num_layers=2, num_kv_heads=2, num_heads=4, choosing=(False, True))
    found = observe(WrittenReplay(factor=2.0, sliding=(0,)), shape=shape)
    np.testing.assert_allclose(found.scales, [[1.0] * 4, [2.0] * 4], rtol=1e-5)
    assert (found.read[0] == 0).all()
    assert (found.read[1] > 0).all()
    assert (found.beyond_window[0] == 1).all()
    assert (found.beyond_window[1] > 0.5).all()


def test_the_shape_of_a_model_is_that_of_its_program() -> None:
    gemma = Shape.of(tiny_model("gemma3").program)
    assert (gemma.num_layers, gemma.num_kv_heads, gemma.num_heads, gemma.group) == (7, 2, 6, 3)
    assert gemma.choosing == (False,) * 5 + (True, False)
    assert gemma.choosing_heads == 2
    llama = Shape.of(tiny_model("llama").program)
    assert llama.choosing == (True,) * 3
    assert llama.choosing_heads == 6
