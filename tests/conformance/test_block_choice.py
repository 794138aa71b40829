"""The blocks that native rows choose are those of their rule; senseless rules are refused."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ellm.errors import ConfigError, NativeError, RequestError
from ellm.program.executor import ChoiceRule, Estimate, Observation, RowChoices, SequenceRows
from ellm.program.numpy_choice import chosen_blocks
from tests.support.choosing_rows import (
    HEADS,
    READ,
    SKIPPED,
    TOTAL,
    WIDENED,
    blocks_read,
    observation,
    run_tail,
)
from tests.support.native_models import native_executor, run_chunks
from tests.support.tiny_models import tiny_model

# What design and documents promise, said once more.
SINK_BLOCKS, WINDOW_BLOCKS, MIN_CHOSEN_BLOCKS, USUAL_BLOCKS = 1, 8, 4, 64
ALWAYS_READ = SINK_BLOCKS + WINDOW_BLOCKS
BLOCKS = 90  # more than a row reads without widening
TEXT = np.random.default_rng(4).integers(0, 131, BLOCKS * 64, dtype=np.int32)
ROW = np.array([5], dtype=np.int32)
ONE_HEAD_EACH = {"num_kv_heads": 6, "num_layers": 2}


@functools.cache
def reader(num_kv_heads=6):
    """Return a model of two layers and an executor that has read the text."""
    model = tiny_model("llama", num_layers=2, num_kv_heads=num_kv_heads)
    executor = native_executor(model, kv_type="int8", num_blocks=BLOCKS + 1)
    run_chunks(executor, TEXT, [512])
    return model, executor


def observe_row(rule, *, blocks=BLOCKS, tokens=ROW, num_kv_heads=6):
    """Run one row behind `blocks` blocks; return its tail."""
    model, executor = reader(num_kv_heads)
    seen = observation(model.program, 1, blocks + 1)
    return run_tail(executor, tokens, blocks * 64, rule, observed=seen)


# Multiples of 1/256, so that what may be skipped is the same number in float32 and float64.
MASSES = st.integers(1, 256).map(lambda i: i / 256)
RULES = st.builds(ChoiceRule, st.sampled_from(Estimate), MASSES, st.none() | st.integers(0, BLOCKS))
ROWS = {
    "blocks": st.integers(1, BLOCKS),
    "tokens": st.integers(0, 130).map(lambda token: np.array([token], dtype=np.int32)),
}


@settings(max_examples=200, deadline=None)
@given(rule=RULES, **ROWS)
def test_the_blocks_read_are_those_that_numpy_chooses_from_the_same_shares(rule, blocks, tokens):
    tail = observe_row(rule, blocks=blocks, tokens=tokens)
    shares = tail.observed.shares[0]
    assert np.isnan(shares[..., blocks:]).all()
    # With one query head per KV head the shares of blocks are all that the choice hangs on.
    read = blocks_read(shares[..., :blocks])
    expected = [
        [chosen_blocks(rule, np.abs(head[None, :blocks])) for head in layer] for layer in shares
    ]
    np.testing.assert_array_equal(read, expected)
    skipped = np.where(read, 0, np.abs(shares[..., :blocks])).sum()
    (counts,) = tail.counts
    assert counts[TOTAL] == read.size
    assert counts[READ] == read.sum()
    assert counts[WIDENED] == (read.sum(axis=-1) > USUAL_BLOCKS + ALWAYS_READ).sum()
    assert counts[SKIPPED] == pytest.approx(skipped, rel=1e-4, abs=1e-6)
    assert counts[HEADS] == 12


# A head that holds the largest share of no block is taken to hold what its own block holds too.
NEARLY = 0.02


def shares_of_heads(tail, rule):
    """Return what blocks hold (layers, heads, B) of each head of the first row, nearly."""
    masses = getattr(tail.observed, rule.estimate.value)[0]
    largest = np.abs(tail.observed.shares[0])
    there = ~np.isnan(largest[0, 0])
    masses, largest = masses[..., there], largest[..., there]
    largest = np.repeat(largest, masses.shape[1] // largest.shape[1], axis=1)
    # A mass over its share is all of a head's masses, where the group's largest share is this
    # head's, and less elsewhere.
    return np.exp(masses - (masses - np.log(largest)).max(axis=-1, keepdims=True))


@settings(max_examples=100, deadline=None)
@given(rule=RULES, num_kv_heads=st.sampled_from([1, 2, 6]), **ROWS)
def test_a_rule_is_kept_for_every_head(rule, num_kv_heads, blocks, tokens):
    tail = observe_row(rule, blocks=blocks, tokens=tokens, num_kv_heads=num_kv_heads)
    shares = tail.observed.shares[0, ..., :blocks]
    read = blocks_read(shares)
    assert read[..., :SINK_BLOCKS].all()
    assert read[..., -WINDOW_BLOCKS:].all()
    candidates = read[..., SINK_BLOCKS:-WINDOW_BLOCKS]
    most = candidates.shape[-1] if rule.max_blocks is None else rule.max_blocks
    chosen = candidates.sum(axis=-1)
    assert chosen.min() >= min(MIN_CHOSEN_BLOCKS, most, candidates.shape[-1])
    if candidates.shape[-1] > MIN_CHOSEN_BLOCKS:
        assert chosen.max() <= most
    if rule.max_blocks is None:
        unread = ~np.repeat(read, 6 // num_kv_heads, axis=1)
        skipped = np.where(unread, shares_of_heads(tail, rule), 0).sum(axis=-1)
        assert skipped.max() <= 1 - rule.mass + NEARLY
        mean = tail.counts[0, SKIPPED] / tail.counts[0, HEADS]
        assert mean <= 1 - rule.mass + 1e-6
        assert mean == pytest.approx(skipped.mean(), abs=NEARLY)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
def test_blocks_are_skipped_as_long_as_the_mass_allows(num_kv_heads):
    # Else "skipped at most" above would hold for a choice that reads everything.
    tail = observe_row(ChoiceRule(Estimate.EXACT, mass=0.75), num_kv_heads=num_kv_heads)
    shares = tail.observed.shares[0]
    skipped = np.where(blocks_read(shares[..., :BLOCKS]), 0, -shares[..., :BLOCKS]).sum(axis=-1)
    assert (skipped >= 0.25 - np.abs(shares[..., :BLOCKS]).max(axis=-1)).all()
    read = [
        observe_row(ChoiceRule(Estimate.EXACT, mass), num_kv_heads=num_kv_heads).counts[0, READ]
        for mass in (0.1, 0.5, 0.75, 0.9, 0.99, 1.0)
    ]
    assert read == sorted(set(read))


def test_more_than_64_chosen_blocks_are_said_to_be_too_many():
    few, many = (
        observe_row(ChoiceRule(Estimate.EXACT, 1.0, max_blocks)).counts[0]
        for max_blocks in (64, 65)
    )
    assert (few[READ], few[WIDENED]) == (12 * (64 + ALWAYS_READ), 0)
    assert (many[READ], many[WIDENED]) == (12 * (65 + ALWAYS_READ), 12)


@pytest.mark.parametrize("estimate", Estimate)
def test_shares_are_those_of_the_observed_masses(estimate):
    tail = observe_row(ChoiceRule(estimate, mass=0.8))
    seen = tail.observed
    shares = np.abs(seen.shares[0, ..., :BLOCKS])
    masses = {e: getattr(seen, e.value)[0, ..., :BLOCKS] for e in Estimate}
    # Up to the mass of the row's own block, which is part of all there is.
    own = np.log(shares) - masses[estimate]
    np.testing.assert_allclose(own, own[..., :1] + np.zeros(BLOCKS), atol=1e-4)
    assert ((shares.sum(axis=-1) < 1) & (shares.sum(axis=-1) > 0.9)).all()
    # Four bits of the keys say nearly what all do; the mean is a lower bound (Jensen), and a loose
    # one: codes are rounded, so that it may be above by a little.
    errors = {e: masses[e] - masses[Estimate.EXACT] for e in Estimate}
    assert 0 < np.abs(errors[Estimate.SCAN]).mean() < 0.05
    assert errors[Estimate.MEAN].max() < 1e-3
    assert errors[Estimate.MEAN].mean() < -0.1


def test_observing_less_changes_nothing_of_the_rest():
    rule = ChoiceRule(Estimate.SCAN, mass=0.8)
    everything = observe_row(rule)
    _, executor = reader()
    for name in ("shares", "exact", "scan", "mean"):
        expected = getattr(everything.observed, name)
        found = np.full_like(expected, np.nan)
        seen = Observation(**{name: found})
        tail = run_tail(executor, ROW, BLOCKS * 64, rule, observed=seen)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(tail.logits, everything.logits)


def test_what_is_observed_of_a_row_does_not_depend_on_the_rows_of_its_step():
    # Twenty rows go through in three turns, and over the border of a block.
    model = tiny_model("llama", num_layers=2)
    executor = native_executor(model, kv_type="int8", num_blocks=32)
    run_chunks(executor, TEXT[:1400], [512])
    rule = ChoiceRule(Estimate.SCAN, mass=0.8)
    together = observation(model.program, 20, 23)
    run_tail(executor, TEXT[1400:1420], 1400, rule, observed=together)
    for row in range(20):
        alone = observation(model.program, 1, 23)
        run_tail(executor, TEXT[1400 + row : 1401 + row], 1400 + row, rule, observed=alone)
        for name in ("shares", "exact", "scan", "mean"):
            found, expected = getattr(together, name)[row], getattr(alone, name)[0]
            assert not np.isnan(found[..., : (1400 + row) // 64]).any()
            np.testing.assert_array_equal(found, expected)


def test_layers_with_a_sliding_window_choose_nothing_and_are_not_counted():
    model = tiny_model("gemma3")
    executor = native_executor(model, kv_type="int8", num_blocks=BLOCKS)
    run_chunks(executor, TEXT[:1408], [512])
    seen = observation(model.program, 2, 22)
    rule = ChoiceRule(Estimate.SCAN, mass=0.5)
    tail = run_tail(executor, TEXT[1408:1410], 1408, rule, observed=seen)
    (chosen_layer,) = np.flatnonzero(~np.isnan(seen.shares).any(axis=(0, 2, 3)))
    assert chosen_layer == 5
    for array in (seen.shares, seen.exact, seen.scan, seen.mean):
        assert np.isnan(np.delete(array, chosen_layer, axis=1)).all()
        assert not np.isnan(array[:, chosen_layer]).any()
    np.testing.assert_array_equal(tail.counts[:, TOTAL], 22 * model.config.num_kv_heads)
    np.testing.assert_array_equal(tail.counts[:, HEADS], model.config.num_heads)
    assert (tail.counts[:, READ] < tail.counts[:, TOTAL]).all()


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_float_kv_cannot_be_read_in_part(kv_type):
    executor = native_executor(tiny_model("llama"), kv_type=kv_type)
    with pytest.raises(ConfigError, match="KV is not int8"):
        run_tail(executor, TEXT[:3], 0, ChoiceRule(Estimate.EXACT, mass=1.0))
    assert run_tail(executor, TEXT[:3], 0, None).logits.shape == (3, 131)


@pytest.mark.parametrize(
    ("estimate", "mass", "max_blocks", "message"),
    [
        ("exact", 0.0, 4, "above 0 to 1"),
        ("exact", -0.5, 4, "above 0 to 1"),
        ("exact", 1.0001, 4, "above 0 to 1"),
        ("exact", float("nan"), 4, "above 0 to 1"),
        ("exact", float("inf"), 4, "above 0 to 1"),
        ("exact", 1e-60, 4, "above 0 to 1"),
        ("exact", 0.5, -1, "at least 0"),
        ("median", 0.5, 4, "exact, scan or mean"),
        ("", 0.5, 4, "exact, scan or mean"),
    ],
)
def test_rules_out_of_range_are_refused_and_leave_no_trace(estimate, mass, max_blocks, message):
    executor = native_executor(tiny_model("llama"), kv_type="int8")
    expected = run_tail(executor, TEXT[:80], 0, None).logits
    rule = ChoiceRule(SimpleNamespace(value=estimate), mass, max_blocks)
    chosen = RowChoices(rule, np.full((16, 5), 7.0))
    rows = [SequenceRows(np.arange(2, dtype=np.int32), 64, 16, chosen)]
    with pytest.raises((ConfigError, RequestError), match=message):
        executor.step(TEXT[:16], rows, np.array([0], dtype=np.int32))
    assert (chosen.counts == 7).all()
    np.testing.assert_array_equal(run_tail(executor, TEXT[64:80], 64, None).logits, expected[64:])


def start_of_more(shape, dtype):
    """Return zeros of this shape with many more behind them."""
    return np.zeros(100_000, dtype)[: np.prod(shape)].reshape(shape)


@pytest.mark.parametrize(
    "change",
    [
        {"counts": (2, 5)},
        {"counts": (3, 4)},
        {"shares": (2, 2, 6, 4)},
        {"shares": (3, 1, 6, 4)},
        {"shares": (3, 2, 6, 2)},
        {"exact": (3, 2, 6, 2)},
        {"shares": (3, 2, 6, 4), "scan": (3, 2, 6, 5)},
        {"shares": (3, 2, 5, 4)},
        {"mean": (3, 2, 1, 4)},
    ],
)
def test_arrays_of_another_shape_are_refused(change):
    # Three rows of two layers, six heads of both kinds, behind three blocks.
    executor = native_executor(tiny_model("llama", **ONE_HEAD_EACH), kv_type="int8")
    run_chunks(executor, TEXT[:192], [192])
    arrays = {"counts": np.zeros((3, 5))}
    for name, shape in change.items():
        # What a missing check lets through is written here, not over something else.
        arrays[name] = start_of_more(shape, np.float64 if name == "counts" else np.float32)
    rule = ChoiceRule(Estimate.EXACT, mass=0.5)
    chosen = RowChoices(rule, arrays.pop("counts"), Observation(**arrays))
    rows = [SequenceRows(np.arange(4, dtype=np.int32), 192, 3, chosen)]
    with pytest.raises(NativeError, match="expected"):
        executor.step(TEXT[:3], rows, np.array([0], dtype=np.int32))


@pytest.mark.parametrize("blocks", [3, 4, 32])
def test_nothing_is_written_beyond_the_blocks_that_there_are(blocks):
    model = tiny_model("llama", **ONE_HEAD_EACH)
    executor = native_executor(model, kv_type="int8")
    run_chunks(executor, TEXT[:192], [192])
    seen = observation(model.program, 3, blocks)
    run_tail(executor, TEXT[:3], 192, ChoiceRule(Estimate.EXACT, mass=0.5), observed=seen)
    assert np.isnan(seen.shares[..., 3:]).all()
    for array in (seen.shares, seen.exact, seen.scan, seen.mean):
        assert not np.isnan(array[..., :3]).any()
        assert np.isnan(array[..., 4:]).all()
