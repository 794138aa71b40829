"""Reads the rotary embedding's hyper-parameters from GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass

from ellm.config.model import RopeConfig, RopeScaling
from ellm.formats.gguf.hyper_parameters import HyperParameters

MAX_CONTEXT_TOKENS = 2**24
_DEFAULT_BASE = 10000.0
_MAX_FACTOR = 1e6


def read_rope(
    keys: HyperParameters,
    head_dim: int,
    context_length: int,
    frequency_factors: tuple[float, ...] | None,
) -> RopeConfig:
    """Return the rotation of layers that see the whole context.

    Raises:
        InvalidModelError: A value is out of range.
        UnsupportedError: The kind of scaling is not implemented.

    Source: defaults and precedence as in llama.cpp (llama-model.cpp, llama-context.cpp): a factor
    without a type is linear; `yarn_attn_factor` counts only where `yarn_ext_factor` is 0.
    """
    dimension_count = keys.integer("rope.dimension_count", 2, head_dim, default=head_dim)
    if dimension_count % 2:
        raise keys.invalid("rope.dimension_count", f"an even number, at most the head's {head_dim}")
    if frequency_factors is not None and len(frequency_factors) != dimension_count // 2:
        raise keys.invalid(
            "rope.dimension_count",
            f"{2 * len(frequency_factors)}, two for each factor in rope_freqs.weight",
        )
    scaling, factor = _scaling(keys)
    yarn = _read_yarn(keys, context_length) if scaling is RopeScaling.YARN else _Yarn()
    return RopeConfig(
        base=keys.rope_base("rope.freq_base", default=_DEFAULT_BASE),
        dimension_count=dimension_count,
        scaling=scaling,
        factor=factor,
        original_context_length=yarn.original_context_length,
        extrapolation_factor=yarn.extrapolation_factor,
        attention_factor=yarn.attention_factor
        * keys.positive("rope.scaling.attn_factor", maximum=_MAX_FACTOR, default=1.0),
        beta_fast=yarn.beta_fast,
        beta_slow=yarn.beta_slow,
        frequency_factors=frequency_factors,
    )


def _scaling(keys: HyperParameters) -> tuple[RopeScaling, float]:
    name = "rope.scaling.factor"
    if name not in keys and "rope.scale_linear" in keys:
        name = "rope.scale_linear"
    factor = keys.number(name, 1.0, _MAX_FACTOR, default=1.0)
    kind = keys.text("rope.scaling.type", default="linear" if factor != 1.0 else "none")
    try:
        scaling = RopeScaling(kind)
    except ValueError:
        raise keys.unsupported("rope.scaling.type", repr(kind)) from None
    if scaling is RopeScaling.NONE:
        return scaling, 1.0
    return scaling, factor


@dataclass(frozen=True, slots=True)
class _Yarn:
    original_context_length: int = 0
    extrapolation_factor: float = 1.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


def _read_yarn(keys: HyperParameters, context_length: int) -> _Yarn:
    keys.refuse_unless("rope.scaling.yarn_log_multiplier", 0.0)
    extrapolation_factor = keys.number("rope.scaling.yarn_ext_factor", 0.0, 1.0, default=1.0)
    attention_factor = keys.positive(
        "rope.scaling.yarn_attn_factor", maximum=_MAX_FACTOR, default=1.0
    )
    return _Yarn(
        original_context_length=keys.integer(
            "rope.scaling.original_context_length", 1, MAX_CONTEXT_TOKENS, default=context_length
        ),
        extrapolation_factor=extrapolation_factor,
        attention_factor=1.0 if extrapolation_factor else attention_factor,
        beta_fast=keys.positive("rope.scaling.yarn_beta_fast", maximum=_MAX_FACTOR, default=32.0),
        beta_slow=keys.positive("rope.scaling.yarn_beta_slow", maximum=_MAX_FACTOR, default=1.0),
    )
