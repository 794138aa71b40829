"""Turns a rope configuration into the table of frequencies that ops use."""

from __future__ import annotations

import math

from ellm.config.model import RopeConfig, RopeScaling
from ellm.program.ops import RopeStyle, RopeTable


def rope_table(rope: RopeConfig, style: RopeStyle) -> RopeTable:
    """Return inverse frequencies base^(-2i/n), scaled as `rope` says, and the magnitude.

    Source: RoFormer (arXiv 2104.09864); linear scaling (arXiv 2306.15595); YaRN (arXiv 2309.00071)
    with the corner frequencies rounded as in ggml_rope_yarn_corr_dims; llama3's factors divide
    each frequency before any other scaling, as in ggml's rope.
    """
    n = rope.dimension_count
    frequencies = [rope.base ** (-2 * i / n) for i in range(n // 2)]
    if rope.frequency_factors is not None:
        frequencies = [
            frequency / factor
            for frequency, factor in zip(frequencies, rope.frequency_factors, strict=True)
        ]
    magnitude = rope.attention_factor
    if rope.scaling is RopeScaling.LINEAR:
        frequencies = [frequency / rope.factor for frequency in frequencies]
    elif rope.scaling is RopeScaling.YARN:
        low, high = _yarn_corners(rope)
        frequencies = [
            _yarn_frequency(rope, frequency, i, low, high)
            for i, frequency in enumerate(frequencies)
        ]
        if rope.extrapolation_factor != 0.0:
            magnitude *= 1.0 + 0.1 * math.log(rope.factor)
    return RopeTable(tuple(frequencies), magnitude, style)


def _yarn_corners(rope: RopeConfig) -> tuple[float, float]:
    """Return the pair indices between which YaRN fades from unscaled to scaled."""

    def pair_with_turns(turns: float) -> float:
        context = rope.original_context_length
        return (
            rope.dimension_count
            * math.log(context / (turns * 2 * math.pi))
            / (2 * math.log(rope.base))
        )

    low = max(0.0, math.floor(pair_with_turns(rope.beta_fast)))
    high = min(rope.dimension_count - 1.0, math.ceil(pair_with_turns(rope.beta_slow)))
    return low, high


def _yarn_frequency(
    rope: RopeConfig, frequency: float, pair: int, low: float, high: float
) -> float:
    ramp = (pair - low) / max(0.001, high - low)
    unscaled = (1.0 - min(1.0, max(0.0, ramp))) * rope.extrapolation_factor
    return frequency / rope.factor * (1.0 - unscaled) + frequency * unscaled
