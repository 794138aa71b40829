"""Hyper-parameters are read with llama.cpp's defaults, and wrong ones are refused by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ellm.config.model import ModelConfig, RopeConfig, RopeScaling
from ellm.errors import EllmError, InvalidModelError, UnsupportedError
from ellm.formats.gguf import MetadataReader
from ellm.formats.gguf.model_config import read_model_config
from ellm.models import ARCHITECTURES
from ellm.models.rope import rope_table
from ellm.program.ops import RopeStyle
from tests.support.tiny_models import TinyTensor

VALID: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 4,
    "llama.context_length": 2048,
    "llama.embedding_length": 96,
    "llama.feed_forward_length": 160,
    "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": ["a"] * 300,
}


@dataclass
class Source:
    """A model file in memory."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TinyTensor] = field(default_factory=dict)
    path: Path = Path("some.gguf")

    @property
    def reader(self) -> MetadataReader:
        return MetadataReader(self.metadata, self.path)

    def read(self, name: str) -> NDArray[np.uint8]:
        return self.tensors[name].data


def read(tensors: Mapping[str, TinyTensor] | None = None, **changes: Any) -> ModelConfig:
    """Read `VALID` with changes: `attention__key_length=8` sets llama.attention.key_length."""
    metadata = dict(VALID)
    for name, value in changes.items():
        metadata["llama." + name.replace("__", ".")] = value
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return read_model_config(Source(metadata, tensors or {}), ARCHITECTURES)


def test_every_value_arrives_with_the_defaults_of_llamacpp() -> None:
    assert read() == ModelConfig(
        architecture="llama",
        vocab_size=300,
        context_length=2048,
        num_layers=4,
        hidden_size=96,
        feed_forward_size=160,
        num_heads=6,
        num_kv_heads=2,
        head_dim=16,
        norm_epsilon=1e-5,
        rope=RopeConfig(base=10000.0, dimension_count=16),
    )


def test_optional_values_are_read() -> None:
    config = read(
        attention__key_length=32,
        attention__value_length=32,
        rope__dimension_count=24,
        rope__freq_base=5e5,
        rope__freq_base_swa=2e4,
        attention__sliding_window=512,
        attention__sliding_window_pattern=3,
        attention__head_count_kv=None,
    )
    assert (config.head_dim, config.rope.dimension_count) == (32, 24)
    assert (config.rope.base, config.sliding_rope_base) == (5e5, 2e4)
    assert (config.sliding_window, config.sliding_pattern) == (512, 3)
    assert config.num_kv_heads == config.num_heads


def test_sizes_stored_per_layer_are_read_when_all_layers_agree() -> None:
    config = read(
        attention__head_count=np.full(4, 6, np.int32),
        attention__head_count_kv=np.full(4, 3, np.int32),
        feed_forward_length=np.full(4, 64, np.int32),
        attention__sliding_window_pattern=np.array([1, 0, 1, 1], np.bool_),
    )
    assert (config.num_heads, config.num_kv_heads, config.feed_forward_size) == (6, 3, 64)
    assert config.sliding_pattern == (True, False, True, True)


def test_vocabulary_size_comes_from_its_key_only_without_a_tokenizer() -> None:
    assert read(vocab_size=7).vocab_size == 300
    metadata = {key: v for key, v in VALID.items() if not key.startswith("tokenizer")}
    source = Source(metadata | {"llama.vocab_size": 7})
    assert read_model_config(source, ARCHITECTURES).vocab_size == 7


NAN, INF = math.nan, math.inf
WRONG_VALUES: list[tuple[str, Any]] = [
    ("block_count", 0),
    ("block_count", -1),
    ("block_count", 2**31),
    ("block_count", "four"),
    ("block_count", 4.0),
    ("block_count", True),
    ("block_count", None),
    ("context_length", 0),
    ("context_length", 2**32 - 1),
    ("context_length", None),
    ("embedding_length", 0),
    ("embedding_length", 2**40),
    ("embedding_length", None),
    ("feed_forward_length", 0),
    ("feed_forward_length", 2**31),
    ("feed_forward_length", None),
    ("feed_forward_length", np.full(3, 160, np.int32)),
    ("attention.head_count", 0),
    ("attention.head_count", -6),
    ("attention.head_count", 7),
    ("attention.head_count", 2**20),
    ("attention.head_count", None),
    ("attention.head_count", np.zeros(4, np.int32)),
    ("attention.head_count", np.full(4, 6, np.float32)),
    ("attention.head_count", ["6"] * 4),
    ("attention.head_count_kv", 0),
    ("attention.head_count_kv", 4),
    ("attention.head_count_kv", 12),
    ("attention.key_length", 0),
    ("attention.key_length", 2**20),
    ("attention.value_length", 0),
    ("attention.layer_norm_rms_epsilon", 0.0),
    ("attention.layer_norm_rms_epsilon", -1e-5),
    ("attention.layer_norm_rms_epsilon", NAN),
    ("attention.layer_norm_rms_epsilon", INF),
    ("attention.layer_norm_rms_epsilon", 2.0),
    ("attention.layer_norm_rms_epsilon", None),
    ("attention.sliding_window", -1),
    ("attention.sliding_window_pattern", 0),
    ("attention.sliding_window_pattern", np.ones(3, np.bool_)),
    ("rope.freq_base", 0.0),
    ("rope.freq_base", -1e4),
    ("rope.freq_base", 1.0),
    ("rope.freq_base", NAN),
    ("rope.freq_base", INF),
    ("rope.freq_base_swa", NAN),
    ("rope.dimension_count", 0),
    ("rope.dimension_count", 7),
    ("rope.dimension_count", 18),
    ("rope.scaling.factor", 0.0),
    ("rope.scaling.factor", 0.5),
    ("rope.scaling.factor", NAN),
    ("rope.scaling.factor", INF),
    ("rope.scaling.type", 2),
    ("rope.scaling.attn_factor", 0.0),
    ("rope.scaling.attn_factor", NAN),
]


@pytest.mark.parametrize(("name", "value"), WRONG_VALUES)
def test_wrong_value_is_refused_by_key(name: str, value: Any) -> None:
    with pytest.raises(InvalidModelError) as caught:
        read(**{name.replace(".", "__"): value})
    message = str(caught.value)
    assert f"llama.{name}" in message
    assert message.startswith("some.gguf: ")
    assert caught.value.found
    assert caught.value.expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("original_context_length", 0),
        ("original_context_length", 2**32),
        ("yarn_ext_factor", -1.0),
        ("yarn_attn_factor", 0.0),
        ("yarn_beta_fast", 0.0),
        ("yarn_beta_slow", NAN),
    ],
)
def test_wrong_yarn_value_is_refused_by_key(name: str, value: float) -> None:
    with pytest.raises(InvalidModelError, match=f"llama.rope.scaling.{name}"):
        read(rope__scaling__type="yarn", **{f"rope__scaling__{name}": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rope.scaling.type", "longrope"),
        ("expert_count", 8),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("attention.value_length", 8),
        ("attention.causal", False),
        ("attention.scale", 0.5),
        ("logit_scale", 0.25),
        ("feed_forward_length", np.array([160, 160, 96, 160], np.int32)),
    ],
)
def test_feature_that_is_not_implemented_is_refused_by_key(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedError, match=f"llama.{name}"):
        read(**{name.replace(".", "__"): value})


def test_features_switched_off_are_accepted() -> None:
    off = {"expert_count": 0, "final_logit_softcapping": 0.0, "attention__causal": True}
    assert read(**off) == read()


def test_unknown_architecture_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"'mamba'.*llama, qwen2, gemma3"):
        read_model_config(Source(VALID | {"general.architecture": "mamba"}), ARCHITECTURES)


@pytest.mark.parametrize("value", [None, 7])
def test_missing_or_mistyped_architecture_is_refused(value: Any) -> None:
    metadata = {k: v for k, v in VALID.items() if k != "general.architecture"}
    if value is not None:
        metadata["general.architecture"] = value
    with pytest.raises(InvalidModelError, match=r"general.architecture"):
        read_model_config(Source(metadata), ARCHITECTURES)


@pytest.mark.parametrize("tokens", [[], "abc", np.zeros(3, np.int32)])
def test_vocabulary_that_is_no_list_of_tokens_is_refused(tokens: Any) -> None:
    with pytest.raises(InvalidModelError, match=r"tokenizer.ggml.tokens"):
        read_model_config(Source(VALID | {"tokenizer.ggml.tokens": tokens}), ARCHITECTURES)


def test_factor_without_a_type_is_linear() -> None:
    for name in ("rope__scaling__factor", "rope__scale_linear"):
        rope = read(**{name: 4.0}).rope
        assert (rope.scaling, rope.factor) == (RopeScaling.LINEAR, 4.0)


def test_scaling_type_none_leaves_the_factor_out() -> None:
    rope = read(rope__scaling__type="none", rope__scaling__factor=4.0).rope
    assert (rope.scaling, rope.factor) == (RopeScaling.NONE, 1.0)


def test_yarn_is_read_with_the_defaults_of_llamacpp() -> None:
    rope = read(rope__scaling__type="yarn", rope__scaling__factor=4.0).rope
    assert rope == RopeConfig(
        base=10000.0,
        dimension_count=16,
        scaling=RopeScaling.YARN,
        factor=4.0,
        original_context_length=2048,
        extrapolation_factor=1.0,
        attention_factor=1.0,
        beta_fast=32.0,
        beta_slow=1.0,
    )


def test_yarn_parameters_are_read() -> None:
    rope = read(
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=512,
        rope__scaling__yarn_ext_factor=0.0,
        rope__scaling__yarn_attn_factor=2.0,
        rope__scaling__attn_factor=1.5,
        rope__scaling__yarn_beta_fast=16.0,
        rope__scaling__yarn_beta_slow=2.0,
    ).rope
    assert (rope.original_context_length, rope.extrapolation_factor) == (512, 0.0)
    assert (rope.attention_factor, rope.beta_fast, rope.beta_slow) == (3.0, 16.0, 2.0)


def factors_tensor(factors: list[float]) -> dict[str, TinyTensor]:
    data = np.array(factors, np.float32)
    return {"rope_freqs.weight": TinyTensor("f32", data.shape, data.view(np.uint8))}


def test_llama3_factors_are_read_from_their_tensor() -> None:
    factors = [1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert read(factors_tensor(factors)).rope.frequency_factors == tuple(factors)


@pytest.mark.parametrize("wrong", [0.0, -1.0, NAN, INF])
def test_llama3_factor_that_divides_badly_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidModelError, match=r"tensor rope_freqs.weight"):
        read(factors_tensor([1.0] * 7 + [wrong]))


@pytest.mark.parametrize("count", [7, 9, 200])
def test_wrong_number_of_llama3_factors_is_refused(count: int) -> None:
    with pytest.raises(InvalidModelError, match=r"rope_freqs.weight"):
        read(factors_tensor([1.0] * count))


KEYS = [
    *sorted({name for name, _ in WRONG_VALUES}),
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "expert_count",
]
VALUES = st.one_of(
    st.integers(-3, 40),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(width=32),
    st.booleans(),
    st.sampled_from(["", "none", "linear", "yarn", "longrope"]),
    st.lists(st.integers(-1, 12), max_size=5).map(lambda v: np.array(v, np.int32)),
    st.lists(st.floats(width=32), max_size=5).map(lambda v: np.array(v, np.float32)),
    st.lists(st.text(max_size=3), max_size=5),
)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
def test_any_metadata_gives_a_usable_configuration_or_a_typed_error(
    changes: dict[str, Any],
) -> None:
    metadata = VALID | {f"llama.{name}": value for name, value in changes.items()}
    try:
        config = read_model_config(Source(metadata), ARCHITECTURES)
    except EllmError:
        return
    assert config.num_heads % config.num_kv_heads == 0
    table = rope_table(config.rope, RopeStyle.INTERLEAVED)
    assert 0 < len(table.inverse_frequencies) <= config.head_dim // 2
    assert all(math.isfinite(f) and f > 0 for f in table.inverse_frequencies)
    assert math.isfinite(table.magnitude)
