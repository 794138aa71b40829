import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ellm.sampling.logprobs import token_logprob


@settings(deadline=None)
@given(seed=st.integers(0, 999), size=st.integers(1, 300), scale=st.sampled_from([0.1, 1.0, 300.0]))
def test_logprobs_of_all_tokens_are_a_distribution(seed, size, scale):
    logits = (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)
    shares = [np.exp(token_logprob(logits, token, 0).logprob) for token in range(size)]
    assert sum(shares) == pytest.approx(1, abs=1e-12)


@settings(deadline=None)
@given(
    logits=st.lists(st.integers(-5, 5), min_size=1, max_size=50),
    count=st.integers(0, 20),
)
def test_top_is_the_stable_sort(logits, count):
    array = np.array(logits, dtype=np.float32)
    found = token_logprob(array, 0, count)
    expected = np.argsort(-array, kind="stable")[:count].tolist()
    assert [token for token, _ in found.top] == expected
    for token, logprob in found.top:
        assert logprob == token_logprob(array, token, 0).logprob
        assert logprob <= 0


def test_huge_and_impossible_logits_stay_finite_where_they_should():
    logits = np.array([3e38, 3e38, -np.inf, -3e38], dtype=np.float32)
    assert token_logprob(logits, 0, 0).logprob == pytest.approx(-np.log(2))
    assert token_logprob(logits, 2, 0).logprob == -np.inf
