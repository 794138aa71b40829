"""What the small model guesses from: common tokens, and those of the text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ellm.kv.block_pool import blocks_for
from ellm.program.executor import GROUP_TOKENS
from ellm.speculative.draft_model import DraftModel
from ellm.speculative.source import DraftContext
from ellm.speculative.vocabulary import LikelyVocabulary
from tests.support.fake_executor import FakeExecutor, logits_after

VOCAB_SIZE = 258
COMMON = 64
EAGER = DraftContext(lambda logits: int(logits.argmax()), np.empty(0, np.int32), 0)


def model(*, vocab_size=VOCAB_SIZE, rows=VOCAB_SIZE, common_tokens=COMMON):
    executor = FakeExecutor(vocab_size=rows, num_blocks=8, max_rows=128)
    made = DraftModel(
        executor, vocab_size=vocab_size, window_tokens=128, common_tokens=common_tokens
    )
    made.chances.least_confidence = 0.0
    return made


def best(text, allowed):
    """Return the likeliest token among those allowed (V,) after `text`."""
    logits = logits_after(np.array(text, np.int32).tobytes(), len(allowed))
    return int(np.where(allowed, logits, -np.inf).argmax())


def allowed(text, common=COMMON):
    likely = np.arange(VOCAB_SIZE) < common
    likely[np.isin(np.arange(VOCAB_SIZE) // GROUP_TOKENS, np.array(text) // GROUP_TOKENS)] = True
    return likely


@pytest.mark.parametrize("text", [[1, 2, 3], [1, 200, 3], [257, 130, 131, 99]])
def test_guesses_are_common_or_of_the_text(text):
    drafter = model().open()
    drafter.commit(text)
    proposal = drafter.propose(4, EAGER)
    told = list(text)
    for token in proposal.tokens:
        assert token == best(told, allowed(text))
        told.append(token)
    assert len(proposal.tokens) == 4


def test_what_is_committed_may_be_guessed_from_then_on():
    made = model()
    text = next(
        [first, second]
        for first in range(COMMON)
        for second in range(COMMON)
        if 240 <= best([first, second, 250], np.ones(VOCAB_SIZE, bool)) < 256
    )
    for tokens in ([*text, 250], text):
        drafter = made.open()
        drafter.commit(tokens)
        drafter.propose(1, EAGER)
        drafter.commit([250] if tokens is text else [])
        expected = best([*text, 250], np.ones(VOCAB_SIZE, bool))
        assert drafter.propose(1, EAGER).tokens == [expected]
        drafter.close()


def test_every_token_is_common_in_a_small_vocabulary():
    drafter = model(common_tokens=32_768).open()
    drafter.commit([1, 2, 3])
    assert drafter.propose(1, EAGER).tokens == [best([1, 2, 3], np.ones(VOCAB_SIZE, bool))]


def test_a_head_with_fewer_rows_never_guesses_those_it_lacks():
    made = model(rows=200, common_tokens=500)
    drafter = made.open()
    drafter.commit([1, 2, 3])
    assert max(drafter.propose(4, EAGER).tokens) < 200
    drafter.commit([230])  # the small model cannot read it
    assert drafter.propose(1, EAGER) is None
    blocks = made.pool.allocate(blocks_for(8))
    logits = made.step(blocks, 0, [1], made.vocabulary().groups)
    assert logits.shape == (VOCAB_SIZE,)
    assert (logits[200:] == -np.inf).all()


def test_steps_are_timed_with_the_head_that_guesses():
    made = model()
    seen = []
    inner = made.executor.step_trimmed

    def step_trimmed(tokens, rows, logits_rows, groups):
        seen.append(groups.tolist())
        return inner(tokens, rows, logits_rows, groups)

    made.executor.step_trimmed = step_trimmed
    made.measure()
    assert seen == [[0, 1, 2, 3]] * 3


@given(
    vocab_size=st.integers(1, 400),
    common=st.integers(0, 500),
    texts=st.lists(st.lists(st.integers(0, 450), max_size=30), max_size=4),
)
def test_groups_are_those_with_a_likely_token(vocab_size, common, texts):
    vocabulary = LikelyVocabulary(vocab_size, common)
    for text in texts:
        vocabulary.add(text)
    likely = {*range(min(common, vocab_size)), *(t for text in texts for t in text)}
    expected = {token // GROUP_TOKENS for token in likely}
    last = (vocab_size - 1) // GROUP_TOKENS
    assert vocabulary.groups.dtype == np.int32
    assert vocabulary.groups.tolist() == sorted(group for group in expected if group <= last)
