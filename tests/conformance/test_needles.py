"""Single tokens that matter are found in the KV cache, wherever they stand, whatever is around."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from ellm.program.executor import ChoiceRule, Estimate
from tests.support.choosing_rows import READ, TOTAL, WIDENED, blocks_read, observation, run_tail
from tests.support.native_models import native_executor, run_chunks
from tests.support.needles import (
    HEAD_DIM,
    NUM_FACTS,
    QUESTION_OF_BOTH,
    fact,
    haystack,
    make_needles,
    question,
)

BY_KEYS = pytest.mark.parametrize("estimate", [Estimate.EXACT, Estimate.SCAN])
# Twenty-four stored blocks, of which 1 to 15 may be left unread, and an open one.
STORED = 24
TEXT_TOKENS = STORED * 64 + 20
MASS, MAX_BLOCKS = 0.95, 4
# Of the largest logit. Less than 1 - MASS of the attention is skipped, and its blocks' means stand
# in for it; a needle that is missed moves the logits by all they are.
TOLERANCE = 0.03

VOCABULARIES = {
    "random keys": {},
    "keys that are nearly the same": {"common": 20.0},
}
# A fact's score is above the rest by more than float32 can exponentiate.
VERY_SHARP = make_needles(sharpness=200.0)
# Question, and where its facts are: {position: fact}, and the blocks that hold them.
PLACES = {
    "in the middle": (question(0), {10 * 64 + 17: 0}, [10]),
    "first in a block": (question(0), {5 * 64: 0}, [5]),
    "last in a block": (question(0), {5 * 64 + 63: 0}, [5]),
    "across the border of two blocks": (QUESTION_OF_BOTH, {10 * 64 - 1: 0, 10 * 64: 1}, [9, 10]),
    "two in one block": (QUESTION_OF_BOTH, {7 * 64 + 3: 0, 7 * 64 + 40: 1}, [7]),
    "two in neighbours": (QUESTION_OF_BOTH, {10 * 64 + 30: 0, 11 * 64 + 5: 1}, [10, 11]),
    "two far apart": (QUESTION_OF_BOTH, {1 * 64 + 30: 0, 15 * 64 + 5: 1}, [1, 15]),
    "the same one twice": (question(0), {2 * 64 + 30: 0, 13 * 64 + 5: 0}, [2, 13]),
    "in the sink block": (question(0), {3: 0}, [0]),
    "first behind the sink block": (question(0), {64: 0}, [1]),
    "last before the window": (question(0), {16 * 64 - 1: 0}, [15]),
    "first in the window": (question(0), {16 * 64: 0}, [16]),
    "last stored": (question(0), {STORED * 64 - 1: 0}, [STORED - 1]),
    "in the open block": (question(0), {STORED * 64 + 5: 0}, []),
}


@functools.cache
def needles(vocabulary):
    return make_needles(**VOCABULARIES[vocabulary])


def text_with(facts, tokens=TEXT_TOKENS):
    text = haystack(tokens)
    for position, index in facts.items():
        text[position] = fact(index)
    return text


def reader(model, text):
    """Return an executor that has read the text, and may read one row more."""
    executor = native_executor(model, kv_type="int8", num_blocks=text.size // 64 + 1)
    run_chunks(executor, text, [512])
    return executor


def ask(executor, model, text, asked, rule):
    """Run a row of the question behind the text; return its logits, shares and counts."""
    stored = text.size // 64
    seen = None if rule is None else observation(model.program, 1, stored)
    row = np.array([asked], dtype=np.int32)
    tail = run_tail(executor, row, text.size, rule, observed=seen)
    return tail.logits[0], None if seen is None else seen.shares[0, 0, 0], tail.counts[0]


@BY_KEYS
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_needles_are_read(vocabulary, place, estimate):
    asked, facts, blocks = PLACES[place]
    model = needles(vocabulary).model
    text = text_with(facts)
    executor = reader(model, text)
    exact, _, _ = ask(executor, model, text, asked, None)
    # The facts' values are what the row found.
    assert set(np.argsort(exact)[-len(set(facts.values())) :]) == set(map(fact, facts.values()))
    rule = ChoiceRule(estimate, MASS, MAX_BLOCKS)
    logits, shares, counts = ask(executor, model, text, asked, rule)
    assert blocks_read(shares)[blocks].all()
    # These keys point everywhere: a scan, which reads the strongest octets, sees them weaker.
    held = np.abs(shares[blocks])
    assert (held > (0.3 if estimate is Estimate.EXACT else 0.1)).all()
    assert (held.sum() > (0.85 if estimate is Estimate.EXACT else 0.5)) == bool(blocks)
    assert counts[READ] < counts[TOTAL]
    np.testing.assert_allclose(logits, exact, rtol=0, atol=TOLERANCE * np.abs(exact).max())


@BY_KEYS
@pytest.mark.parametrize("block", range(STORED))
def test_a_needle_of_all_the_attention_is_read_in_every_block(block, estimate):
    # The shares of other blocks are zeros: with a sign, so that it can be told which were read.
    model = VERY_SHARP.model
    text = text_with({block * 64 + 17: 0})
    executor = reader(model, text)
    exact, _, _ = ask(executor, model, text, question(0), None)
    rule = ChoiceRule(estimate, MASS, MAX_BLOCKS)
    logits, shares, counts = ask(executor, model, text, question(0), rule)
    assert shares[block] == pytest.approx(1.0)
    assert np.count_nonzero(shares) < STORED / 2
    read = blocks_read(shares)
    assert read.sum() == counts[READ] == 13
    assert read[[0, *range(STORED - 8, STORED), block]].all()
    np.testing.assert_allclose(logits, exact, rtol=0, atol=1e-5)


def test_needles_are_lost_by_the_mean_of_their_block():
    # Why `block-mean` is a baseline: the mean of 64 keys hardly shows one of them.
    model = needles("random keys").model
    blocks = [2 + 6 * index for index in range(NUM_FACTS)]
    places = {block * 64 + 17: index for index, block in enumerate(blocks)}
    text = text_with(places, tokens=90 * 64 + 20)
    executor = reader(model, text)
    found = dict.fromkeys(Estimate, 0)
    for estimate in Estimate:
        rule = ChoiceRule(estimate, MASS, MAX_BLOCKS)
        for index, block in enumerate(blocks):
            exact, _, _ = ask(executor, model, text, question(index), None)
            logits, shares, _ = ask(executor, model, text, question(index), rule)
            error = np.abs(logits - exact).max() / np.abs(exact).max()
            assert (error > 0.5) == (not blocks_read(shares)[block])
            found[estimate] += error < TOLERANCE
    assert found[Estimate.EXACT] == found[Estimate.SCAN] == NUM_FACTS
    assert found[Estimate.MEAN] < NUM_FACTS / 2


@BY_KEYS
@pytest.mark.parametrize("vocabulary", ["random keys", "keys that are nearly the same"])
def test_a_mass_that_is_spread_widens_the_choice(vocabulary, estimate):
    # The same fact in every one of 84 blocks: each holds as much as the others.
    model = needles(vocabulary).model
    rng = np.random.default_rng(2)
    text = text_with({b * 64 + int(rng.integers(64)): 0 for b in range(84)}, tokens=84 * 64 + 20)
    executor = reader(model, text)
    exact, _, _ = ask(executor, model, text, question(0), None)
    assert exact.argmax() == fact(0)
    logits, _, counts = ask(executor, model, text, question(0), ChoiceRule(estimate, MASS))
    assert counts[WIDENED] == 1
    assert 0.9 * 84 <= counts[READ] < 84
    # A skipped block is off by its whole share: its mean is not the fact's value.
    bound = (1 - MASS) * 2 * np.abs(exact).max()
    np.testing.assert_allclose(logits, exact, rtol=0, atol=bound)
    _, _, few = ask(executor, model, text, question(0), ChoiceRule(estimate, MASS, MAX_BLOCKS))
    assert (few[READ], few[WIDENED]) == (9 + MAX_BLOCKS, 0)


@pytest.mark.parametrize("estimate", Estimate)
def test_blocks_of_equal_keys_are_as_good_as_read_by_their_means(estimate):
    # All attention is equal, and the part of the text that is skipped has values of its own.
    known = make_needles(spread=0.0, common=1.0)
    text = haystack(60 * 64 + 20) % 5
    text[40 * 64 :] += 5
    executor = reader(known.model, text)
    exact, _, _ = ask(executor, known.model, text, question(0), None)
    rule = ChoiceRule(estimate, MASS, max_blocks=4)
    logits, shares, counts = ask(executor, known.model, text, question(0), rule)
    assert counts[READ] == 13
    read = np.repeat(blocks_read(shares), 64)
    seen = np.concatenate([text[: 60 * 64][read], text[60 * 64 :], [question(0)]])
    without_means = logits_of(known, known.values[seen].mean(axis=0))
    atol = TOLERANCE * np.abs(exact).max()
    np.testing.assert_allclose(logits, exact, rtol=0, atol=atol)
    assert np.abs(without_means - exact).max() > 10 * atol


@BY_KEYS
def test_a_needle_that_the_limit_skips_leaves_the_mean_of_its_block(estimate):
    # It outweighs all that is read by more than float32 can hold: a sum of nothing but it.
    known = VERY_SHARP
    text = text_with({10 * 64 + 17: 0})
    executor = reader(known.model, text)
    rule = ChoiceRule(estimate, MASS, max_blocks=0)
    logits, shares, counts = ask(executor, known.model, text, question(0), rule)
    assert counts[READ] == 9
    assert shares[10] == pytest.approx(-1.0)
    expected = logits_of(known, known.values[text[10 * 64 : 11 * 64]].mean(axis=0))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=0.01)


def logits_of(known, found):
    """Return the logits (V,) of a row that found a value (D,)."""
    normed = found / np.sqrt(np.mean(np.square(found)) + 1.0)
    return known.values @ normed / HEAD_DIM**0.5
