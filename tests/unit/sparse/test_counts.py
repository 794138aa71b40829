"""What rows chose adds up to what is told with an answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ellm.program.executor import Estimate
from ellm.sparse.counts import NUM_COUNTS, ChoiceLog, ChoiceTotals

# total, read, widened, skipped share summed over heads, heads
ROWS = np.array([[100, 40, 0, 0.5, 8], [110, 50, 2, 1.1, 8], [20, 20, 0, 0.0, 8]])


def totals_of(*steps):
    log = ChoiceLog()
    for step in steps:
        log.add(step, Estimate.SCAN)
    return log.totals


def test_nothing_chosen_is_zeros_and_no_estimate():
    assert ChoiceLog().totals == ChoiceTotals()
    assert ChoiceTotals() == ChoiceTotals(0, 0, 0, 0, 0.0, None)


def test_rows_are_summed_and_the_skipped_share_is_a_mean_over_heads():
    totals = totals_of(ROWS)
    assert (totals.rows, totals.blocks_total, totals.blocks_read) == (3, 230, 110)
    assert totals.widened == 2
    assert totals.skipped_mass == pytest.approx(1.6 / 24)
    assert totals.estimate is Estimate.SCAN


@given(st.lists(st.integers(0, 3), max_size=4))
def test_how_rows_are_cut_into_steps_changes_nothing(cuts):
    # Eighths: their sums are exact in any order.
    rows = ROWS * [1, 1, 1, 0, 1] + [0, 0, 0, 0.125, 0]
    assert totals_of(*np.split(rows, sorted(cuts))) == totals_of(rows)


def test_rows_without_heads_skip_nothing():
    # A model whose layers all have a sliding window.
    totals = totals_of(np.zeros((4, NUM_COUNTS)))
    assert totals == ChoiceTotals(rows=4, estimate=Estimate.SCAN)


def test_totals_are_a_picture_of_their_moment():
    log = ChoiceLog()
    log.add(ROWS[:1], Estimate.EXACT)
    before = log.totals
    log.add(ROWS[1:], Estimate.EXACT)
    assert (before.rows, before.blocks_read) == (1, 40)
    assert (log.totals.rows, log.totals.blocks_read) == (3, 110)
