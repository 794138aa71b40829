import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ellm.config.sampling import SamplingParams
from ellm.sampling.penalties import Penalties

VOCAB = 12
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=30)


def naive(logits, params, prompt, answer):
    """Recompute everything from the definition, one token at a time."""
    seen = prompt + answer
    if params.repetition_window_tokens is not None:
        seen = seen[-params.repetition_window_tokens :]
    result = []
    for token, logit in enumerate(logits.tolist()):
        if token in seen:
            factor = params.repetition_penalty
            logit = logit / factor if logit > 0 else logit * factor
        if token in answer:
            logit -= params.presence_penalty + params.frequency_penalty * answer.count(token)
        result.append(logit)
    return result


@settings(deadline=None)
@given(
    params=st.builds(
        SamplingParams,
        repetition_penalty=st.sampled_from([1.0, 0.5, 1.1, 2.0]),
        repetition_window_tokens=st.sampled_from([None, 1, 5, 64]),
        presence_penalty=st.sampled_from([0.0, -0.5, 2.0]),
        frequency_penalty=st.sampled_from([0.0, -0.25, 0.5]),
    ),
    prompt=tokens,
    answer=tokens,
    seed=st.integers(0, 99),
)
def test_penalties_kept_up_to_date_equal_the_definition(params, prompt, answer, seed):
    logits = np.random.default_rng(seed).standard_normal(VOCAB).astype(np.float32)
    penalties = Penalties(params, prompt, VOCAB)
    for token in answer:
        penalties.add(token)
    changed = logits.copy()
    penalties.apply(changed)
    np.testing.assert_allclose(changed, naive(logits, params, prompt, answer), rtol=1e-5, atol=1e-5)
    if not penalties.active:
        assert np.array_equal(changed, logits)


def test_a_long_prompt_does_not_count_for_presence_and_frequency():
    params = SamplingParams(presence_penalty=2.0, frequency_penalty=2.0)
    penalties = Penalties(params, [3] * 1000, VOCAB)
    logits = np.zeros(VOCAB, dtype=np.float32)
    penalties.apply(logits)
    assert not logits.any()
    penalties.add(3)
    penalties.apply(logits)
    assert logits[3] == -4
