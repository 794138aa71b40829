"""Reads a model's hyper-parameters from GGUF metadata; every one is checked before it is used."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ellm.config.model import ModelConfig
from ellm.errors import InvalidModelError, UnsupportedError
from ellm.formats.gguf.hyper_parameters import HyperParameters
from ellm.formats.gguf.metadata import MetadataReader, MetadataValue
from ellm.formats.gguf.rope_config import MAX_CONTEXT_TOKENS, read_rope
from ellm.formats.quantization import decode

# Far above any published model; low enough that no product of two of them leaves int64 and that a
# forged count is refused before memory is asked for.
_MAX_LAYERS = 1024
_MAX_HEADS = 4096
_MAX_HEAD_DIM = 1024
_MAX_SIZE = 2**20
_MAX_FEED_FORWARD = 2**22
_MAX_VOCABULARY = 2**24

_TOKENS = "tokenizer.ggml.tokens"
_ROPE_FACTORS = "rope_freqs.weight"

# Features of other variants that change results, with the value that changes nothing.
_NEUTRAL: Mapping[str, float] = {
    "expert_count": 0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.scale": 0.0,
    "attention.temperature_scale": 0.0,
    "logit_scale": 0.0,
    "residual_scale": 0.0,
    "embedding_scale": 0.0,
    "use_parallel_residual": False,
    "pooling_type": 0,
}


class TensorEntry(Protocol):
    """What is read of a tensor's entry."""

    @property
    def type_name(self) -> str:
        """Key of `ellm.formats.quantization.FORMATS`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, rows first."""


class ModelSource(Protocol):
    """What is read of a model file; `GgufFile` is one."""

    @property
    def path(self) -> Path:
        """Named in errors."""

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        """Every metadata value by key."""

    @property
    def reader(self) -> MetadataReader:
        """Typed access to the metadata."""

    @property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """Every tensor's entry by name."""

    def read(self, name: str) -> NDArray[np.uint8]:
        """Return the raw bytes of a tensor."""


def read_model_config(source: ModelSource, architectures: Collection[str]) -> ModelConfig:
    """Return the hyper-parameters of a model file.

    Args:
        source: The open file.
        architectures: Names that programs can be recorded for.

    Raises:
        InvalidModelError: A value is missing, out of range or contradicts another; names its key.
        UnsupportedError: The architecture or a feature of it is not implemented.

    Source: GGUF specification (docs/gguf.md in ggml); defaults as in llama.cpp.
    """
    architecture = source.reader.text("general.architecture")
    if architecture not in architectures:
        raise UnsupportedError(
            f"{source.path}: architecture {architecture!r}; known are {', '.join(architectures)}"
        )
    keys = HyperParameters(source.metadata, source.reader, architecture, path=str(source.path))
    for name, neutral in _NEUTRAL.items():
        keys.refuse_unless(name, neutral)
    num_layers = keys.integer("block_count", 1, _MAX_LAYERS)
    context_length = keys.integer("context_length", 1, MAX_CONTEXT_TOKENS)
    hidden_size = keys.integer("embedding_length", 1, _MAX_SIZE)
    num_heads = keys.uniform_integer("attention.head_count", 1, _MAX_HEADS, num_layers=num_layers)
    head_dim = _head_dim(keys, hidden_size, num_heads)
    swa_base = "rope.freq_base_swa"
    return ModelConfig(
        architecture=architecture,
        vocab_size=_vocab_size(source, keys),
        context_length=context_length,
        num_layers=num_layers,
        hidden_size=hidden_size,
        feed_forward_size=keys.uniform_integer(
            "feed_forward_length", 1, _MAX_FEED_FORWARD, num_layers=num_layers
        ),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(keys, num_heads, num_layers),
        head_dim=head_dim,
        norm_epsilon=keys.positive("attention.layer_norm_rms_epsilon", maximum=0.1),
        rope=read_rope(keys, head_dim, context_length, _frequency_factors(source, head_dim)),
        sliding_window=_sliding_window(keys),
        sliding_pattern=_sliding_pattern(keys, num_layers),
        sliding_rope_base=keys.rope_base(swa_base) if swa_base in keys else None,
    )


def _vocab_size(source: ModelSource, keys: HyperParameters) -> int:
    """Return the number of tokens; the file's own count matters only without a tokenizer."""
    if _TOKENS not in source.metadata:
        return keys.integer("vocab_size", 1, _MAX_VOCABULARY)
    vocab_size = len(source.reader.texts(_TOKENS))
    if not 1 <= vocab_size <= _MAX_VOCABULARY:
        raise source.reader.invalid(_TOKENS, expected=f"1 to {_MAX_VOCABULARY} tokens")
    return vocab_size


def _num_kv_heads(keys: HyperParameters, num_heads: int, num_layers: int) -> int:
    name = "attention.head_count_kv"
    found = keys.uniform_integer(name, 1, num_heads, num_layers=num_layers, default=num_heads)
    if num_heads % found:
        raise keys.invalid(name, f"a divisor of {num_heads} heads")
    return found


def _head_dim(keys: HyperParameters, hidden_size: int, num_heads: int) -> int:
    key, value = "attention.key_length", "attention.value_length"
    if key not in keys and hidden_size % num_heads:
        raise keys.invalid(
            "attention.head_count", f"a divisor of embedding_length {hidden_size}, or a key_length"
        )
    head_dim = keys.integer(key, 1, _MAX_HEAD_DIM, default=hidden_size // num_heads)
    value_length = keys.integer(value, 1, _MAX_HEAD_DIM, default=head_dim)
    if value_length != head_dim:
        raise keys.unsupported(value, f"{value_length} beside a key_length of {head_dim}")
    return head_dim


def _sliding_window(keys: HyperParameters) -> int | None:
    return keys.integer("attention.sliding_window", 0, MAX_CONTEXT_TOKENS, default=0) or None


def _sliding_pattern(keys: HyperParameters, num_layers: int) -> int | tuple[bool, ...] | None:
    name = "attention.sliding_window_pattern"
    if name not in keys:
        return None
    if keys.is_array(name):
        return tuple(bool(flag) for flag in keys.integers(name, length=num_layers))
    return keys.integer(name, 1, _MAX_LAYERS)


def _frequency_factors(source: ModelSource, head_dim: int) -> tuple[float, ...] | None:
    """Return llama3's divisors of the rotation frequencies, which converters store as a tensor."""
    if _ROPE_FACTORS not in source.tensors:
        return None
    entry = source.tensors[_ROPE_FACTORS]
    what, path = f"tensor {_ROPE_FACTORS}", str(source.path)
    if len(entry.shape) != 1 or entry.shape[0] > head_dim:
        raise InvalidModelError(
            what, path=path, found=f"shape {entry.shape}", expected=f"at most {head_dim} factors"
        )
    factors = tuple(decode(entry.type_name, source.read(_ROPE_FACTORS), entry.shape).tolist())
    for factor in factors:
        if not (math.isfinite(factor) and factor > 0):
            raise InvalidModelError(
                what, path=path, found=str(factor), expected="finite factors above 0"
            )
    return factors
