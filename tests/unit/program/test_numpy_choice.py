"""Attention over chosen blocks in NumPy: what is read, and what stands in for the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ellm.program import numpy_math
from ellm.program.executor import ChoiceRule, Estimate, Observation, RowChoices
from ellm.program.numpy_choice import attend_row, chosen_blocks, four_bit_keys

HEADS, KV_HEADS, DIM = 6, 2, 8
EVERY_ESTIMATE = pytest.mark.parametrize("estimate", Estimate)


def mass_rule(mass: float, max_blocks: int | None = None) -> ChoiceRule:
    return ChoiceRule(Estimate.EXACT, mass, max_blocks)


def shares_of(candidates: list[float]) -> np.ndarray:
    """Return shares (1, B): these blocks, and around them those that are always read."""
    return np.array([[1 / 64, *candidates, *[1 / 64] * 8]], dtype=np.float32)


def chosen(rule: ChoiceRule, *heads: list[float]) -> list[int]:
    """Return which candidates are read, by index."""
    read = chosen_blocks(rule, np.concatenate([shares_of(head) for head in heads]))
    assert read[0]
    assert read[-8:].all()
    return np.flatnonzero(read[1:-8]).tolist()


# Shares by octaves apart: no two are in one step.
FALLING = [2.0**-power for power in range(2, 12)]


def test_the_smallest_are_skipped_while_the_mass_is_held():
    # What the last four hold is less than 0.01, what the last five hold is more.
    assert sum(FALLING[-4:]) < 0.01 < sum(FALLING[-5:])
    assert chosen(mass_rule(0.99), FALLING) == [0, 1, 2, 3, 4, 5]
    assert chosen(mass_rule(0.99), FALLING[::-1]) == [4, 5, 6, 7, 8, 9]


def test_what_is_skipped_may_be_all_that_is_allowed_but_not_more():
    equal = [1 / 16] * 10
    assert len(chosen(mass_rule(0.75), equal)) == 6
    assert len(chosen(mass_rule(0.7500001), equal)) == 7


def test_every_head_keeps_the_mass():
    # Each head alone could skip seven blocks, and they are not the same ones.
    first, second = [1 / 8] * 3 + [1 / 128] * 7, [1 / 128] * 7 + [1 / 8] * 3
    rule = mass_rule(1 - 7 / 128)
    assert chosen(rule, first) == [0, 1, 2, 9]  # at least four
    assert chosen(rule, second) == [6, 7, 8, 9]
    assert chosen(rule, first, second) == [0, 1, 2, 7, 8, 9]


def test_at_least_four_are_chosen_and_no_more_than_the_limit():
    one = [0.5, *[2.0**-20] * 9]
    assert chosen(mass_rule(0.5), one) == [0, 7, 8, 9]
    assert chosen(mass_rule(0.5, 2), one) == [0, 9]
    assert chosen(mass_rule(0.5, 0), one) == []
    assert chosen(mass_rule(1.0, 6), FALLING) == [0, 1, 2, 3, 4, 5]
    assert chosen(mass_rule(1.0, 10), FALLING) == list(range(10))
    assert chosen(mass_rule(1.0), FALLING) == list(range(10))
    # The limit goes before the mass.
    assert chosen(mass_rule(0.999, 5), [1 / 16] * 10) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("candidates", [0, 1, 4])
def test_too_few_candidates_are_all_read(candidates):
    rule = mass_rule(0.01, 0)
    assert chosen(rule, [1 / 1024] * candidates) == list(range(candidates))
    assert chosen(rule, [1 / 1024] * 5) == []


@pytest.mark.parametrize("blocks", range(1, 10))
def test_short_sequences_read_everything(blocks):
    shares = np.full((1, blocks), 1 / 64, dtype=np.float32)
    assert chosen_blocks(mass_rule(0.01, 0), shares).all()


def test_within_a_sixteenth_of_an_octave_the_earlier_are_skipped():
    five = mass_rule(1.0, 5)
    assert chosen(five, [1.06 / 16, *[1 / 16] * 9]) == [5, 6, 7, 8, 9]
    assert chosen(five, [1.07 / 16, *[1 / 16] * 9]) == [0, 6, 7, 8, 9]


def test_shares_next_to_nothing_are_alike():
    tiny = [2.0 ** -(40 + i) for i in range(9)]
    assert chosen(mass_rule(0.9), [0.5, *tiny]) == [0, 7, 8, 9]


SHARES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.integers(1, 60)),
    elements=st.floats(0, 0.5, width=32, allow_subnormal=False),
)


@settings(max_examples=200, deadline=None)
@given(SHARES, st.integers(1, 255), st.none() | st.integers(0, 60), st.randoms())
def test_the_order_of_heads_does_not_matter(shares, mass, max_blocks, random):
    rule = mass_rule(mass / 256, max_blocks)
    order = list(range(len(shares)))
    random.shuffle(order)
    read = chosen_blocks(rule, shares)
    np.testing.assert_array_equal(chosen_blocks(rule, shares[order]), read)
    # More mass never reads less.
    more = chosen_blocks(mass_rule((mass + 1) / 256, max_blocks), shares)
    assert (read <= more).all()


def random_keys(seed: int, blocks: int = 3) -> np.ndarray:
    """Return keys (blocks, 64, D) whose elements have offsets and ranges of their own."""
    rng = np.random.default_rng(seed)
    offsets, ranges = 300 * rng.standard_normal(DIM), rng.uniform(0.1, 10, DIM)
    return (rng.standard_normal((blocks, 64, DIM)) * ranges + offsets).astype(np.float32)


def test_four_bits_say_keys_to_a_sixteenth_of_the_range_of_their_element():
    keys = random_keys(1)
    centred = keys - keys.mean(axis=1, keepdims=True)
    scale = np.abs(centred).max(axis=1, keepdims=True) / 127
    # Codes are rounded, and a code counts as the middle of the sixteen it may be.
    errors = np.abs(four_bit_keys(keys) - keys) / scale
    assert 7 < errors.max() < 8.01
    assert len(np.unique(four_bit_keys(keys)[0, :, 0])) <= 16


def test_four_bits_of_equal_keys_are_the_keys():
    keys = np.broadcast_to(np.float32(1.25), (2, 64, DIM)).copy()
    np.testing.assert_array_equal(four_bit_keys(keys), keys)


def test_four_bits_of_a_block_depend_on_no_other_block():
    keys = random_keys(2)
    np.testing.assert_array_equal(four_bit_keys(keys)[1:2], four_bit_keys(keys[1:2]))


class Row:
    """One row behind `stored` random blocks, `own` tokens of its own block included."""

    def __init__(self, stored: int = 20, own: int = 10, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.q = rng.standard_normal((HEADS, DIM)).astype(np.float32)
        self.k, self.v = rng.standard_normal((2, stored + 1, 64, KV_HEADS, DIM)).astype(np.float32)
        self.end = stored * 64 + own
        self.stored = stored
        self.shares = np.zeros((1, 1, KV_HEADS, stored + 1), np.float32)
        self.counts = np.zeros((1, 5))

    def attend(self, rule: ChoiceRule) -> np.ndarray:
        self.counts[:] = 0
        choices = RowChoices(rule, self.counts, Observation(shares=self.shares))
        return attend_row(self.q, self.k, self.v, end=self.end, choices=choices, row=0, layer=0)

    def exact(self) -> np.ndarray:
        k, v = (array.reshape(-1, KV_HEADS, DIM)[: self.end] for array in (self.k, self.v))
        visible = np.ones((1, self.end), dtype=bool)
        return numpy_math.attend(self.q[None], k, v, scale=1.0, visible=visible)[0]


@EVERY_ESTIMATE
@pytest.mark.parametrize("stored", [0, 1, 20])
def test_the_whole_mass_is_exact_attention(estimate, stored):
    row = Row(stored)
    np.testing.assert_allclose(row.attend(ChoiceRule(estimate, 1.0)), row.exact(), atol=1e-5)
    assert row.counts[0].tolist() == [stored * KV_HEADS, stored * KV_HEADS, 0, 0, HEADS]


@EVERY_ESTIMATE
def test_counts_and_shares_say_what_was_read(estimate):
    row = Row()
    row.attend(ChoiceRule(estimate, 0.7))
    total, read, widened, skipped, heads = row.counts[0]
    seen = row.shares[0, 0, :, : row.stored]
    assert (total, widened, heads) == (row.stored * KV_HEADS, 0, HEADS)
    assert read == (seen > 0).sum() < total
    assert 0 < skipped / heads <= 0.3
    assert not row.shares[..., row.stored :].any()


@EVERY_ESTIMATE
def test_blocks_that_are_alike_inside_are_as_good_as_read(estimate):
    # Their mean is all that there is to know, so any choice gives exact attention.
    row = Row()
    row.k[:] = row.k[:, :1]
    row.v[:, :] = row.v[:, :1]
    out = row.attend(ChoiceRule(estimate, 0.5, max_blocks=0))
    assert row.counts[0, 1] == 9 * KV_HEADS
    np.testing.assert_allclose(out, row.exact(), atol=1e-5)


@pytest.mark.parametrize("underestimated", [1.0, 3.0, 10.0])
def test_what_is_not_read_enters_with_the_mass_that_was_estimated(underestimated):
    # Scores of a and -a: their mean says 64 a block, and they hold 64 cosh(a).
    row = Row(stored=20, own=64)
    row.q[:, 0], row.q[:, 1:], row.k[:] = 1.0, 0.0, 0.0
    score = np.arccosh(underestimated)
    row.k[:, ::2, :, 0], row.k[:, 1::2, :, 0] = score, -score
    row.v[:, :] = row.v[:, :1]
    out = row.attend(ChoiceRule(Estimate.MEAN, 0.5, max_blocks=0))
    weights = np.full(21, underestimated)
    weights[1:12] = 1.0
    values = np.repeat(row.v[:, 0].transpose(1, 0, 2), HEADS // KV_HEADS, axis=0)
    np.testing.assert_allclose(out, weights @ values / weights.sum(), atol=1e-4)


def test_keys_beyond_the_row_are_not_seen():
    row = Row()
    expected = row.attend(mass_rule(0.7))
    row.k[-1, 10:] += 100
    row.v[-1, 10:] += 100
    np.testing.assert_array_equal(row.attend(mass_rule(0.7)), expected)
    row.v[-1, 9] += 100
    assert (row.attend(mass_rule(0.7)) != expected).any()


@pytest.mark.parametrize(
    ("estimate", "max_blocks"),
    [
        (Estimate.EXACT, None),
        (Estimate.SCAN, None),
        (Estimate.MEAN, 0),
        (Estimate.EXACT, 0),
        (Estimate.SCAN, 0),
        (Estimate.MEAN, None),
    ],
)
def test_a_key_above_all_others_gives_numbers(estimate, max_blocks):
    row = Row()
    row.q[:, 0], row.k[..., 0] = 1.0, 0.0
    row.k[5, 3, :, 0] = 150.0
    out = row.attend(ChoiceRule(estimate, 0.9, max_blocks))
    assert np.isfinite(out).all()
    assert np.isfinite(row.counts).all()
