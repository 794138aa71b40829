"""The tracer keeps what the rows of an answer saw, as many as it has room for."""

from __future__ import annotations

import numpy as np
import pytest

from ellm.program.executor import ChoiceRule, Estimate, Observation
from ellm.sparse.tracing import DEFAULT_MAX_ROWS, BlockTracer, observing

LAYERS, KV_HEADS = 3, 2


def make(max_rows=5):
    return BlockTracer(num_layers=LAYERS, num_kv_heads=KV_HEADS, max_rows=max_rows)


def observe(tracer, start, count, blocks, first=1.0):
    """Let the tracer keep `count` rows whose shares are first, first + 1, ..."""
    observation = tracer.observation(count, blocks)
    for row in range(count):
        observation.shares[row] = first + row
    tracer.keep(observation, start, len(observation.shares))


def test_arrays_have_the_shape_of_the_model_and_are_all_that_is_asked_for():
    observation = make().observation(count=4, blocks=7)
    assert observation.shares.shape == (4, LAYERS, KV_HEADS, 7)
    assert observation.shares.dtype == np.float32
    assert not observation.shares.any()
    assert (observation.exact, observation.scan, observation.mean) == (None, None, None)


def test_rows_are_kept_in_order_with_their_positions():
    tracer = make()
    observe(tracer, 100, 2, blocks=2)
    observe(tracer, 127, 1, blocks=2, first=3.0)
    assert tracer.positions == [100, 101, 127]
    assert [row[0, 0, 0] for row in tracer.rows] == [1.0, 2.0, 3.0]


def test_only_as_many_rows_are_kept_as_there_is_room_for():
    tracer = make(max_rows=5)
    for start in (0, 3, 6):
        assert tracer.wants_more == (start < 6)
        observe(tracer, start, 3, blocks=1)
    assert tracer.positions == [0, 1, 2, 3, 4]
    assert len(tracer.rows) == 5
    assert not tracer.wants_more
    assert make(max_rows=DEFAULT_MAX_ROWS).wants_more


def test_a_tracer_without_room_keeps_nothing():
    tracer = make(max_rows=0)
    assert not tracer.wants_more
    observe(tracer, 0, 2, blocks=1)
    assert tracer.rows == []


def test_kept_rows_do_not_change_with_the_array_they_came_from():
    tracer = make()
    observation = tracer.observation(1, 1)
    tracer.keep(observation, 0, len(observation.shares))
    observation.shares[:] = 9
    assert not tracer.rows[0].any()


def test_observations_without_shares_are_nothing_to_keep():
    tracer = make()
    tracer.keep(Observation(exact=np.ones((1, LAYERS, 4, 2), np.float32)), 0, 1)
    assert tracer.rows == []


@pytest.mark.parametrize("blocks", [1, 2, 3, 6])
def test_shares_of_all_rows_have_one_width(blocks):
    tracer = make()
    observe(tracer, 0, 1, blocks=2)
    observe(tracer, 64, 1, blocks=4, first=2.0)
    shares = tracer.shares(blocks)
    assert shares.shape == (2, LAYERS, KV_HEADS, blocks)
    there = np.arange(blocks)
    np.testing.assert_array_equal(shares[0, 0, 0], np.where(there < 2, 1, 0))
    np.testing.assert_array_equal(shares[1, 2, 1], np.where(there < 4, 2, 0))


def test_which_blocks_were_read_survives_rounding_to_half_precision():
    # 1e-12 is no half: it becomes a zero, and keeps its sign.
    tracer = make()
    observation = tracer.observation(1, 4)
    observation.shares[...] = [0.5, -0.25, -1e-12, 1e-12]
    tracer.keep(observation, 0, len(observation.shares))
    shares = tracer.shares(4)[0, 0, 0]
    np.testing.assert_array_equal(np.signbit(shares), [False, True, True, False])
    np.testing.assert_array_equal(np.abs(shares), [0.5, 0.25, 0, 0])


def test_exact_rows_are_observed_by_a_rule_that_reads_everything():
    assert observing(None) == ChoiceRule(Estimate.EXACT, mass=1.0, max_blocks=None)
    rule = ChoiceRule(Estimate.SCAN, mass=0.5, max_blocks=3)
    assert observing(rule) is rule
