"""The fit of an exit finds the linear map there is, and no more than the rows say."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from ellm.calibration import exit_fit
from ellm.calibration.exit_fit import (
    STRENGTHS,
    ExitMap,
    NormalEquations,
    exit_layers,
    fit_exit,
    fitting_bytes,
    relative_error,
)

SIZE = 24
Floats = NDArray[np.float32]


def rows_of(count: int, seed: int, size: int = SIZE) -> Floats:
    """Return rows (count, size) whose elements are of very different sizes, around their means."""
    rng = np.random.default_rng(seed)
    scales = np.geomspace(0.01, 1000, size, dtype=np.float32)
    return (rng.standard_normal((count, size), np.float32) + np.float32(0.5)) * scales


def planted() -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((SIZE, SIZE)).astype(np.float32)
    return weight, rng.standard_normal(SIZE).astype(np.float32)


def fitted(rows: Floats, targets: Floats, *, held_out: int) -> ExitMap:
    equations = NormalEquations(rows.shape[1])
    for start in range(0, len(rows) - held_out, 50):
        end = min(start + 50, len(rows) - held_out)
        equations.add(rows[start:end], targets[start:end])
    return fit_exit(equations, rows[-held_out:], targets[-held_out:])


def test_a_planted_linear_map_is_recovered() -> None:
    weight, bias = planted()
    rows = rows_of(600, 1)
    targets = rows @ weight.T + bias
    found = fitted(rows, targets, held_out=100)
    # The least ridge takes a millionth of an element's variance.
    scales = np.abs(rows).mean(axis=0)
    np.testing.assert_allclose(found.weight * scales, weight * scales, rtol=1e-3, atol=0.02)
    assert relative_error(found, rows, targets) < 1e-9
    new = rows_of(50, 2)
    assert relative_error(found, new, new @ weight.T + bias) < 1e-9


def test_rows_that_do_not_change_give_the_identity_to_the_bit() -> None:
    rows = rows_of(60, 1)
    found = fitted(rows, rows, held_out=20)
    np.testing.assert_array_equal(found.weight, np.eye(SIZE, dtype=np.float32))
    np.testing.assert_array_equal(found.bias, np.zeros(SIZE))


def test_a_constant_change_is_all_bias() -> None:
    rows, change = rows_of(200, 1), planted()[1]
    found = fitted(rows, rows + change, held_out=50)
    assert relative_error(found, rows_of(9, 2), rows_of(9, 2) + change) < 1e-9


def test_rows_in_chunks_count_as_rows_at_once() -> None:
    weight, bias = planted()
    rows = rows_of(100, 1)
    targets = rows @ weight.T + bias
    whole, parts = NormalEquations(SIZE), NormalEquations(SIZE)
    whole.add(rows, targets)
    for start in (0, 7, 8, 90):
        end = {0: 7, 7: 8, 8: 90, 90: 100}[start]
        parts.add(rows[start:end], targets[start:end])
    np.testing.assert_allclose(parts.solve(0.1).weight, whole.solve(0.1).weight, rtol=1e-4)


def test_little_and_noisy_text_is_not_overfitted() -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((400, SIZE)).astype(np.float32)
    noise = 5 * rng.standard_normal((400, SIZE)).astype(np.float32)
    targets = rows + noise
    equations = NormalEquations(SIZE)
    equations.add(rows[:30], targets[:30])
    found = fit_exit(equations, rows[30:], targets[30:])
    errors = [relative_error(equations.solve(each), rows[30:], targets[30:]) for each in STRENGTHS]
    assert relative_error(found, rows[30:], targets[30:]) == min(errors)
    assert min(errors) < 0.7 * errors[0]


def test_fewer_rows_than_elements_and_elements_that_never_change_have_a_map() -> None:
    rows = rows_of(8, 1)
    rows[:, 3] = 7.0
    found = fitted(rows, 2 * rows, held_out=4)
    assert np.isfinite(found.weight).all()
    same = np.ones((4, SIZE), np.float32)
    found = fitted(same, 3 * same, held_out=2)
    np.testing.assert_allclose(same @ found.weight.T + found.bias, 3 * same, rtol=1e-6)


def test_a_row_at_the_head_counts_by_its_direction_and_not_by_its_size() -> None:
    # The norm before the head divides by the size; one enormous row must not be fitted alone.
    weight, bias = planted()
    rows = rows_of(300, 1)
    targets = rows @ weight.T + bias
    outlier = 1e5 * rows_of(1, 9)
    equations = NormalEquations(SIZE)
    equations.add(rows, targets)
    equations.add(outlier, -outlier)
    found = equations.solve(1e-3)
    assert relative_error(found, rows, targets) < 0.1


@pytest.mark.parametrize(
    ("num_layers", "layers"),
    [(1, []), (2, [1]), (3, [1, 2]), (4, [1, 2, 3]), (24, [6, 12, 18]), (30, [7, 15, 22])],
)
def test_exits_are_at_a_quarter_half_and_three_quarters(num_layers: int, layers: list[int]) -> None:
    assert list(exit_layers(num_layers)) == layers


def test_fitting_takes_no_more_memory_than_is_counted() -> None:
    size, kept = 300, 200
    pieces = [rows_of(kept, seed, size) for seed in range(3)]
    exit_fit.relative_error(
        ExitMap(np.eye(2, dtype="f"), np.zeros(2, "f")), *[np.ones((1, 2), "f")] * 2
    )
    tracemalloc.start()
    try:
        equations = [NormalEquations(size) for _ in range(3)]
        for sums in equations:
            sums.add(pieces[0], pieces[1])
        tracemalloc.reset_peak()
        maps = [fit_exit(sums, pieces[2], pieces[1]) for sums in equations]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(maps) == 3
    assert peak < fitting_bytes(size, 3, kept)
