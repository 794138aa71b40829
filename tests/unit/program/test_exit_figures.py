"""Whether drafts from an exit pay follows from acceptance and times, by the formula."""

from __future__ import annotations

import pytest

from ellm.program.exit_figures import DepthFigures, ExitFigures


def figures(*depths: tuple[int, float, float], rows: float = 0.05) -> ExitFigures:
    """Return the figures of exits (layer, acceptance, cost); each more row costs `rows`."""
    return ExitFigures(
        num_layers=28,
        learnt_tokens=5000,
        depth_tokens=192,
        step_seconds=tuple(2 * (1 + rows * more) for more in range(5)),
        depths=tuple(
            DepthFigures(
                layer=layer, agreed=round(1000 * share), positions=1000, exit_seconds=2 * cost
            )
            for layer, share, cost in depths
        ),
    )


def test_the_gain_is_expected_tokens_over_the_time_they_take() -> None:
    found = figures((14, 0.5, 0.3), rows=0.1)
    depth = found.depths[0]
    assert found.gain(depth, 1) == pytest.approx(1.5 / (0.3 + 1.1))
    assert found.gain(depth, 3) == pytest.approx((1 - 0.5**4) / (1 - 0.5) / (0.9 + 1.3))


def test_an_exit_that_always_agrees_brings_every_draft() -> None:
    found = figures((7, 1.0, 0.0), rows=0.0)
    assert [found.gain(found.depths[0], chain) for chain in range(1, 5)] == [2, 3, 4, 5]
    assert found.best_chain(found.depths[0]) == 4


def test_the_exit_that_gains_most_is_the_best() -> None:
    found = figures((7, 0.2, 0.3), (14, 0.9, 0.5), (21, 0.95, 0.9))
    assert found.best.layer == 14
    assert found.pays


def test_what_was_measured_on_the_1_5b_does_not_pay() -> None:
    found = figures((7, 0.17, 0.40), (14, 0.21, 0.60), (21, 0.41, 0.80))
    assert not found.pays
    assert all(found.gain(found.best, chain) < 1 for chain in range(1, 5))


@pytest.mark.parametrize("cost", [0.1, 0.3, 0.6, 0.85])
@pytest.mark.parametrize("rows", [0.0, 0.05, 0.3])
def test_the_acceptance_that_is_needed_is_the_border(cost: float, rows: float) -> None:
    needed = figures((14, 0.5, cost), rows=rows).needed_acceptance(
        figures((14, 0.5, cost)).depths[0]
    )
    if needed is None:
        assert not figures((14, 1.0, cost), rows=rows).pays
        return
    assert not figures((14, needed - 0.002, cost), rows=rows).pays
    assert figures((14, needed + 0.002, cost), rows=rows).pays


def test_the_verdict_says_why() -> None:
    assert figures((14, 0.21, 0.6)).verdict() == (
        "does not pay: at layer 14 of 28 the exit agrees in 21% of tokens and costs 0.60 of a "
        "step; it would have to agree in more than 73%"
    )
    assert figures((14, 0.21, 1.0)).verdict() == (
        "does not pay: at layer 14 of 28 the exit agrees in 21% of tokens and costs 1.00 of a "
        "step; it would not pay if it agreed in all of them"
    )
    assert figures((7, 0.8, 0.2)).verdict() == (
        "pays: at layer 7 of 28 the exit agrees in 80% of tokens and costs 0.20 of a step; chains "
        "of 3 drafts make answers 1.69 times as fast"
    )
    assert "chains of 1 draft make" in figures((7, 0.8, 0.2), rows=0.5).verdict()
