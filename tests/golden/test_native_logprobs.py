"""The native engine is closer to the float32 figures of the real models than llama.cpp is."""

from __future__ import annotations

import numpy as np
import pytest

from ellm import LLM
from tests.support.real_models import EVERY_MODEL, model_path, reference


@pytest.fixture(scope="module")
def loaded():
    """Return a loader that keeps the last model open: the tests come model by model."""
    kept = {}

    def load(name, **options):
        key = (name, *sorted(options.items()))
        if key not in kept:
            for llm in kept.values():
                llm.close()
            kept.clear()
            kept[key] = LLM(model_path(name), context_tokens=1152, **options)
        return kept[key]

    yield load
    for llm in kept.values():
        llm.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", EVERY_MODEL)
@pytest.mark.parametrize("kv_type", ["f32", "int8"])
def test_scores_are_at_least_as_close_as_llama_cpp(name, kv_type, loaded):
    record = reference(name)
    scores = loaded(name, kv_type=kv_type).score(record["text_ids"])
    agreement = np.mean(scores.top1 == np.array(record["f32_top1"]))
    difference = np.abs(scores.logprob - np.array(record["f32_logprob_of_next"])).mean()
    bar = record["llamacpp_vs_f32"]
    assert agreement >= bar["top1_agreement"]
    assert difference <= bar["mean_abs_logprob_difference"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", EVERY_MODEL)
@pytest.mark.parametrize(
    "options",
    [{"threads": 1}, {"rows_per_chunk": 64}, {"rows_per_chunk": 7}, {"rows_per_chunk": 1}],
)
def test_threads_and_chunks_change_no_bit(name, options, loaded):
    ids = reference(name)["text_ids"][:150]
    expected = loaded(name).score(ids)
    found = loaded(name, **options).score(ids)
    np.testing.assert_array_equal(found.top1, expected.top1)
    np.testing.assert_array_equal(found.logprob, expected.logprob)
