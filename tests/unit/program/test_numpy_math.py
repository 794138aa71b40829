"""The NumPy ops equal their formulas, written as plain loops in double precision."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from ellm.program import numpy_math
from ellm.program.ops import RopeStyle, RopeTable

RNG = np.random.default_rng(0)


def random(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    x, weight = random(3, 7), random(7)
    for row, normed in zip(x, numpy_math.rms_norm(x, weight, 1e-3), strict=True):
        root = math.sqrt(sum(float(v) ** 2 for v in row) / 7 + 1e-3)
        expected = [float(v) / root * float(w) for v, w in zip(row, weight, strict=True)]
        np.testing.assert_allclose(normed, expected, rtol=1e-6)


def test_linear_multiplies_each_row_by_each_output() -> None:
    x, weight, bias = random(3, 5), random(4, 5), random(4)
    expected = [
        [sum(float(a) * float(b) for a, b in zip(row, w, strict=True)) for w in weight] for row in x
    ]
    np.testing.assert_allclose(numpy_math.linear(x, weight, None), expected, atol=1e-6)
    np.testing.assert_allclose(
        numpy_math.linear(x, weight, bias), np.array(expected) + bias, atol=1e-6
    )


def test_activations_equal_their_formulas_and_keep_their_limits() -> None:
    x = np.concatenate((random(50), np.array([-200, -90, 0, 90, 200], np.float32)))
    silu = [float(v) / (1 + math.exp(-float(v))) for v in x]
    gelu = [
        0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
        for v in map(float, x)
    ]
    np.testing.assert_allclose(numpy_math.silu(x), silu, rtol=1e-6, atol=1e-37)
    np.testing.assert_allclose(numpy_math.gelu_tanh(x), gelu, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("style", RopeStyle)
@pytest.mark.parametrize("pairs", [3, 4])
def test_rotate_turns_each_pair_as_a_complex_number(style: RopeStyle, pairs: int) -> None:
    x = random(2, 3, 8)
    table = RopeTable(tuple(0.7**i for i in range(pairs)), 1.25, style)
    turned = numpy_math.rotate(x, np.array([0, 40_000]), table)
    for row, position in enumerate((0, 40_000)):
        for head in range(3):
            expected = x[row, head].astype(np.float64)
            for i, frequency in enumerate(table.inverse_frequencies):
                pair = (2 * i, 2 * i + 1) if style is RopeStyle.INTERLEAVED else (i, i + pairs)
                a, b = (float(x[row, head, j]) for j in pair)
                z = complex(a, b) * cmath.exp(1j * position * frequency) * 1.25
                expected[list(pair)] = z.real, z.imag
            np.testing.assert_allclose(turned[row, head], expected, atol=1e-6)


def test_attend_is_the_softmax_over_what_a_row_sees() -> None:
    rows, tokens, num_heads, num_kv_heads, head_dim = 3, 5, 6, 2, 4
    q = random(rows, num_heads, head_dim)
    k, v = random(tokens, num_kv_heads, head_dim), random(tokens, num_kv_heads, head_dim)
    visible = np.array([[1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]], np.bool_)
    out = numpy_math.attend(q, k, v, scale=0.3, visible=visible)
    for row in range(rows):
        seen = np.flatnonzero(visible[row])
        for head in range(num_heads):
            kv_head = head // 3
            scores = [0.3 * float(q[row, head] @ k[token, kv_head]) for token in seen]
            weights = [math.exp(score) for score in scores]
            expected = sum(
                w / sum(weights) * v[token, kv_head] for w, token in zip(weights, seen, strict=True)
            )
            np.testing.assert_allclose(out[row, head], expected, atol=1e-6)


def test_attend_survives_scores_beyond_the_range_of_exp() -> None:
    q = np.full((1, 1, 1), 1000, np.float32)
    k = np.array([[[1000]], [[-1000]]], np.float32)
    v = np.array([[[1]], [[2]]], np.float32)
    out = numpy_math.attend(q, k, v, scale=1.0, visible=np.ones((1, 2), np.bool_))
    assert out[0, 0, 0] == 1
