import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from ellm.config.sampling import SamplingParams
from ellm.errors import ConfigError

NAN, INF = float("nan"), float("inf")

REFUSED = {
    "max_tokens": [0, -1, 2**31, 2**63, True, 1.0, "200", NAN],
    "temperature": [-1, -1e-9, 1e300, NAN, INF, "hot", True, None, 10**400],
    "top_k": [-1, -2, 2**31, 1.5, True, "40"],
    "top_p": [0, 0.0, -0.1, 1.0001, NAN, "0.9", True],
    "min_p": [-0.1, 1.1, NAN, INF, True],
    "repetition_penalty": [0, -1, 10.5, NAN, INF, False],
    "repetition_window_tokens": [0, -1, 1.0, True, 10**5000],
    "presence_penalty": [-2.1, 2.1, NAN, "1"],
    "frequency_penalty": [-2.1, 2.1, -INF, True],
    "logit_bias": [
        {-1: 1.0},
        {2**31: 1.0},
        {"5": 1.0},
        {True: 1.0},
        {5: NAN},
        {5: 1e308},
        {5: "1"},
        [5],
        dict.fromkeys(range(1025), 0.0),
    ],
    "seed": [-1, 2**63, 1.0, True, "7"],
    "stop": [5, b"x", "", ["a", ""], ["a", 5], ["x"] * 17, "x" * 1025, "\u00e9" * 513, {"a": 1}],
    "stop_token_ids": [5, "5", [-1], [2**31], [True], [1.0], [0] * 1025],
    "ignore_eos": [1, 0, None, "yes"],
    "min_tokens": [-1, 257, 2**31, True, 1.0],
    "logprobs": [-1, 21, 10**6, True, 1.0, "5"],
    "cache_salt": [5, None, "x" * 1025],
    "chain_length": [-1, 33, True, 1.0, "5"],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in REFUSED.items() for value in values],
    ids=lambda value: value if isinstance(value, str) and value in REFUSED else "",
)
def test_value_that_cannot_work_is_refused_with_field_and_allowed_range(field, value):
    with pytest.raises(ConfigError) as caught:
        SamplingParams(**{field: value})
    assert str(caught.value).startswith(field)
    assert "allowed is" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_every_field_has_refused_values():
    assert set(REFUSED) == {field.name for field in fields(SamplingParams)}


@pytest.mark.parametrize(
    "values",
    [
        {"max_tokens": None, "min_tokens": 5000},
        {"temperature": 0, "top_p": 1, "min_p": 0},
        {"temperature": 100.0, "top_p": 1e-12, "min_p": 1.0, "top_k": 2**31 - 1},
        {"stop": "end"},
        {"stop": ["x"] * 16},
        {"stop": "x" * 1024},
        {"stop": ()},
        {"seed": 0},
        {"seed": 2**63 - 1},
        {"logprobs": 0},
        {"logprobs": 20},
        {"repetition_window_tokens": None},
        {"min_tokens": 256},
    ],
)
def test_edge_of_every_range_is_accepted(values):
    SamplingParams(**values)


def test_unknown_parameter_and_positional_use_are_refused():
    with pytest.raises(TypeError):
        SamplingParams(temprature=1.0)
    with pytest.raises(TypeError):
        SamplingParams(200)


def test_params_do_not_change_with_what_they_were_made_from():
    bias, stop = {5: 1.0}, ["a"]
    params = SamplingParams(logit_bias=bias, stop=stop)
    bias[6] = 2.0
    stop.append("b")
    assert dict(params.logit_bias) == {5: 1.0}
    assert params.stop == ("a",)
    with pytest.raises(TypeError):
        params.logit_bias[7] = 1.0
    with pytest.raises(FrozenInstanceError):
        params.top_k = 3


def test_copies_are_equal_hashable_and_checked():
    params = SamplingParams(logit_bias={5: 1.0}, stop=["a"], temperature=0.5)
    for twin in (copy.deepcopy(params), pickle.loads(pickle.dumps(params)), replace(params)):
        assert twin == params
        assert hash(twin) == hash(params)
    assert replace(params, top_k=3) != params
    with pytest.raises(ConfigError):
        replace(params, top_k=-3)
