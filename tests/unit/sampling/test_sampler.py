"""Laws of the sampler, by chi-square where they are about probabilities."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ellm.config.sampling import SamplingParams
from ellm.errors import NativeError, RequestError
from ellm.sampling.sampler import Sampler

DRAWS = 20_000
# 1 - 1e-6 quantiles of chi-square by degrees of freedom: one false alarm in a million runs, and
# the seeds are fixed anyway. Source: scipy.stats.chi2.isf(1e-6, df).
CHI_SQUARE_LIMIT = {1: 23.93, 2: 27.63, 3: 30.66, 4: 33.38, 5: 35.89, 7: 40.52, 9: 44.81}

LOGITS = np.array([2.0, -1.0, 0.5, 1.5, -3.0, 0.0, 1.5, -0.5], dtype=np.float32)


def softmax(logits):
    weights = np.exp(np.asarray(logits, dtype=np.float64) - np.max(logits))
    return weights / weights.sum()


def drawn(logits, *, draws=DRAWS, **params):
    sampler = Sampler(SamplingParams(seed=7, **params), [0], len(logits))
    return np.array([sampler.sample(logits) for _ in range(draws)])


def chosen(logits, **params):
    return set(drawn(logits, draws=500, **params).tolist())


def assert_distribution(tokens, expected):
    expected = np.asarray(expected)
    counts = np.bincount(tokens, minlength=len(expected))
    possible = expected > 0
    assert not counts[~possible].any()
    chi_square = ((counts - DRAWS * expected) ** 2)[possible] / (DRAWS * expected)[possible]
    assert chi_square.sum() < CHI_SQUARE_LIMIT[possible.sum() - 1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax_at_a_temperature(temperature):
    assert_distribution(drawn(LOGITS, temperature=temperature), softmax(LOGITS / temperature))


def test_wrong_distribution_would_be_noticed():
    with pytest.raises(AssertionError):
        assert_distribution(drawn(LOGITS, temperature=1.1), softmax(LOGITS))


def test_draws_over_several_runs_of_the_vocabulary_follow_the_softmax():
    logits = np.full(3000, -np.inf, dtype=np.float32)
    places = [0, 511, 512, 1023, 1700, 2047, 2048, 2999]
    logits[places] = LOGITS
    tokens = drawn(logits, temperature=1.0)
    assert set(tokens) <= set(places)
    assert_distribution(np.searchsorted(places, tokens), softmax(LOGITS))


def test_top_k_keeps_the_k_largest():
    kept = np.full(8, -np.inf)
    kept[[0, 3, 6, 2]] = LOGITS[[0, 3, 6, 2]]
    assert_distribution(drawn(LOGITS, temperature=1.0, top_k=4), softmax(kept))


def test_top_k_keeps_the_lower_id_on_a_tie():
    assert chosen(LOGITS, temperature=1.0, top_k=2) == {0, 3}


def test_top_p_keeps_the_fewest_tokens_that_reach_p():
    # softmax(LOGITS) sorted: 0 .369, 3 .224, 6 .224, 2 .082, ...; .59 needs two, .60 three.
    assert chosen(LOGITS, temperature=1.0, top_p=0.59) == {0, 3}
    kept = np.full(8, -np.inf)
    kept[[0, 3, 6]] = LOGITS[[0, 3, 6]]
    assert_distribution(drawn(LOGITS, temperature=1.0, top_p=0.60), softmax(kept))


def test_min_p_keeps_tokens_near_the_most_likely_one():
    kept = np.where(2.0 + np.log(0.2) > LOGITS, -np.inf, LOGITS)
    assert np.isfinite(kept).sum() == 4
    assert_distribution(drawn(LOGITS, temperature=1.0, min_p=0.2), softmax(kept))


def test_filters_come_before_temperature():
    # At temperature 5 alone, .60 would keep four; llama.cpp's order filters first.
    assert chosen(LOGITS, temperature=5.0, top_p=0.60) == {0, 3, 6}


def test_top_p_counts_only_what_top_k_left():
    # Of three tokens, 0 alone has .452: one is enough for .45, but two are needed of all eight.
    assert chosen(LOGITS, temperature=1.0, top_k=3, top_p=0.45) == {0}
    assert chosen(LOGITS, temperature=1.0, top_p=0.45) == {0, 3}


@settings(deadline=None)
@given(
    logits=hnp.arrays(np.float32, st.integers(1, 9000), elements=st.integers(-6, 6)),
    params=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 1e-300, 0.3, 1.0, 100.0]),
        top_k=st.sampled_from([0, 1, 2, 40, 5000]),
        top_p=st.sampled_from([1e-300, 0.3, 0.95, 1.0]),
        min_p=st.sampled_from([0.0, 0.05, 1.0]),
        seed=st.integers(0, 2**63 - 1),
    ),
)
def test_any_filters_agree_with_a_plain_sort(logits, params):
    order = np.argsort(-logits, kind="stable")
    kept = order[: params.top_k] if params.top_k else order
    share = np.cumsum(np.exp(logits[kept].astype(np.float64) - logits.max()))
    kept = kept[: int(np.searchsorted(share, params.top_p * share[-1] * (1 - 1e-12))) + 1]
    if params.min_p:
        kept = kept[logits[kept] >= logits.max() + np.log(params.min_p)]
    token = Sampler(params, [0], len(logits)).sample(logits)
    assert token in kept
    if params.temperature in (0.0, 1e-300):
        assert logits[token] == logits.max()
    if params.temperature == 0.0:
        assert token == int(order[0])


def test_greedy_takes_the_lowest_id_of_the_largest_logits():
    logits = np.array([1, 3, 3, 2, 3], dtype=np.float32)
    assert Sampler(SamplingParams(), [0], 5).sample(logits) == 1


def test_seed_decides_and_each_token_takes_one_draw():
    params = SamplingParams(seed=11, temperature=1.0)
    one, two = Sampler(params, [0], 8), Sampler(params, [0], 8)
    tokens = [one.sample(LOGITS) for _ in range(50)]
    flat = np.zeros(8, dtype=np.float32)
    two.sample(flat)
    assert [two.sample(LOGITS) for _ in range(49)] == tokens[1:]
    filtered = Sampler(SamplingParams(seed=11, temperature=1.0, top_k=8, top_p=1.0), [0], 8)
    assert [filtered.sample(LOGITS) for _ in range(50)] == tokens
    other = Sampler(SamplingParams(seed=12, temperature=1.0), [0], 8)
    assert [other.sample(LOGITS) for _ in range(50)] != tokens


def test_requests_without_a_seed_differ():
    params = SamplingParams(temperature=1.0)
    first, second = (Sampler(params, [0], 8) for _ in range(2))
    assert [first.sample(LOGITS) for _ in range(60)] != [second.sample(LOGITS) for _ in range(60)]


def test_logits_are_left_as_they_are():
    logits = LOGITS.copy()
    params = SamplingParams(
        temperature=0.7, repetition_penalty=1.5, logit_bias={1: 5.0}, top_k=5, min_p=0.01
    )
    sampler = Sampler(params, [0, 3], 8)
    for _ in range(5):
        sampler.sample(logits, forbidden=[2])
    assert np.array_equal(logits, LOGITS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_numbers_are_an_error(temperature, bad):
    logits = LOGITS.copy()
    logits[5] = bad
    with pytest.raises(NativeError, match="of 8 logits"):
        Sampler(SamplingParams(temperature=temperature), [0], 8).sample(logits)


def test_all_logits_minus_infinity_are_an_error_but_some_are_not():
    sampler = Sampler(SamplingParams(temperature=1.0), [0], 8)
    with pytest.raises(NativeError):
        sampler.sample(np.full(8, -np.inf, dtype=np.float32))
    only = np.full(8, -np.inf, dtype=np.float32)
    only[6] = -5
    assert sampler.sample(only) == 6


def test_forbidden_tokens_are_never_chosen():
    assert Sampler(SamplingParams(), [0], 8).sample(LOGITS, forbidden=[0, 3]) == 6
    with pytest.raises(RequestError, match="forbids every token"):
        Sampler(SamplingParams(), [0], 8).sample(LOGITS, forbidden=range(8))


def test_bias_moves_a_token_up_and_another_out():
    params = SamplingParams(logit_bias={4: 100.0, 0: -100.0})
    assert Sampler(params, [0], 8).sample(LOGITS) == 4
    assert 0 not in chosen(LOGITS, temperature=1.0, logit_bias={0: -100.0})


@pytest.mark.parametrize("field", [{"logit_bias": {8: 1.0}}, {"stop_token_ids": [3, 8]}])
def test_token_the_model_has_not_is_refused(field):
    with pytest.raises(RequestError, match=r"names token 8; the model's ids are 0\.\.7"):
        Sampler(SamplingParams(**field), [0], 8)


def test_chosen_tokens_count_for_the_penalties_of_the_next():
    logits = np.array([3.0, 2.5, 2.0], dtype=np.float32)
    presence = Sampler(SamplingParams(presence_penalty=0.7), [0], 3)
    assert [presence.sample(logits) for _ in range(4)] == [0, 1, 0, 0]
    repetition = Sampler(SamplingParams(repetition_penalty=2.0), [2], 3)
    assert [repetition.sample(logits) for _ in range(4)] == [0, 1, 0, 0]
