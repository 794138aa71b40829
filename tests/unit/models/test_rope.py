"""Rope tables equal the formulas of the papers' authors and of transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from ellm.config.model import RopeConfig, RopeScaling
from ellm.models.rope import rope_table
from ellm.program.ops import RopeStyle

BASE, DIM = 5e5, 64


def unscaled() -> NDArray[np.float64]:
    return 1.0 / BASE ** (np.arange(0, DIM, 2) / DIM)


def frequencies(rope: RopeConfig) -> NDArray[np.float64]:
    return np.array(rope_table(rope, RopeStyle.HALVES).inverse_frequencies)


def test_plain_table_is_the_geometric_row_of_roformer() -> None:
    table = rope_table(RopeConfig(BASE, DIM), RopeStyle.INTERLEAVED)
    np.testing.assert_allclose(table.inverse_frequencies, unscaled(), rtol=1e-12)
    assert (table.magnitude, table.style) == (1.0, RopeStyle.INTERLEAVED)


def test_linear_scaling_turns_position_p_as_p_over_the_factor() -> None:
    rope = RopeConfig(BASE, DIM, scaling=RopeScaling.LINEAR, factor=8.0)
    np.testing.assert_allclose(8000 * frequencies(rope), 1000 * unscaled(), rtol=1e-12)


def transformers_yarn(factor: float, context: int, fast: float, slow: float) -> NDArray[np.float64]:
    """Source: transformers modeling_rope_utils._compute_yarn_parameters."""

    def correction_dim(turns: float) -> float:
        return (DIM * math.log(context / (turns * 2 * math.pi))) / (2 * math.log(BASE))

    low = max(math.floor(correction_dim(fast)), 0)
    high = min(math.ceil(correction_dim(slow)), DIM - 1)
    ramp = np.clip((np.arange(DIM // 2) - low) / (high - low), 0, 1)
    extrapolation = 1 - ramp
    positions = BASE ** (np.arange(0, DIM, 2) / DIM)
    return (1 / (factor * positions)) * (1 - extrapolation) + (1 / positions) * extrapolation


@pytest.mark.parametrize(
    ("factor", "context", "fast", "slow"),
    [(4.0, 32768, 32.0, 1.0), (16.0, 2048, 32.0, 1.0), (2.5, 4096, 64.0, 4.0)],
)
def test_yarn_equals_transformers(factor: float, context: int, fast: float, slow: float) -> None:
    rope = RopeConfig(
        BASE,
        DIM,
        scaling=RopeScaling.YARN,
        factor=factor,
        original_context_length=context,
        beta_fast=fast,
        beta_slow=slow,
    )
    expected = transformers_yarn(factor, context, fast, slow)
    assert expected[0] == pytest.approx(unscaled()[0])
    assert expected[-1] == pytest.approx(unscaled()[-1] / factor)
    np.testing.assert_allclose(frequencies(rope), expected, rtol=1e-12)
    magnitude = rope_table(rope, RopeStyle.HALVES).magnitude
    assert magnitude == pytest.approx(1 + 0.1 * math.log(factor))


def test_yarn_without_extrapolation_is_linear_with_the_attention_factor_alone() -> None:
    rope = RopeConfig(
        BASE,
        DIM,
        scaling=RopeScaling.YARN,
        factor=4.0,
        original_context_length=4096,
        extrapolation_factor=0.0,
        attention_factor=1.25,
    )
    np.testing.assert_allclose(frequencies(rope), unscaled() / 4, rtol=1e-12)
    assert rope_table(rope, RopeStyle.HALVES).magnitude == 1.25


def test_yarn_of_an_absurdly_short_context_stays_finite() -> None:
    rope = RopeConfig(BASE, DIM, scaling=RopeScaling.YARN, factor=4.0, original_context_length=1)
    np.testing.assert_allclose(frequencies(rope)[1:], unscaled()[1:] / 4, rtol=1e-12)


def test_llama3_factors_give_the_frequencies_of_transformers() -> None:
    factor, low, high, context = 32.0, 1.0, 4.0, 8192
    wavelength = 2 * math.pi / unscaled()
    # Source: convert_hf_to_gguf.py stores these divisors; transformers
    # _compute_llama3_parameters gives the frequencies.
    smooth = (context / wavelength - low) / (high - low)
    divisors = np.where(
        wavelength < context / high,
        1.0,
        np.where(wavelength > context / low, factor, 1 / ((1 - smooth) / factor + smooth)),
    )
    expected = np.where(wavelength > context / low, unscaled() / factor, unscaled())
    medium = (wavelength >= context / high) & (wavelength <= context / low)
    smoothed = (1 - smooth) * unscaled() / factor + smooth * unscaled()
    expected = np.where(medium, smoothed, expected)
    assert medium.any()
    rope = RopeConfig(BASE, DIM, frequency_factors=tuple(divisors))
    np.testing.assert_allclose(frequencies(rope), expected, rtol=1e-9)
