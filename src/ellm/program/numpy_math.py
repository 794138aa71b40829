"""The arithmetic of single ops in NumPy float32; each function is an op's specification."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ellm.program.ops import Activation, RopeStyle, RopeTable

Floats = NDArray[np.float32]


def rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    """Return x / sqrt(mean(x^2) + epsilon) * weight over the last axis."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
    normed: Floats = x / np.sqrt(mean_square + epsilon) * weight
    return normed


def linear(x: Floats, weight: Floats, bias: Floats | None) -> Floats:
    """Return x (T, cols) times weight (rows, cols) transposed, plus bias: (T, rows)."""
    y: Floats = x @ weight.T
    return y if bias is None else y + bias


def silu(x: Floats) -> Floats:
    """Return x * sigmoid(x)."""
    with np.errstate(over="ignore"):  # exp(-x) = inf gives the right limit, -0
        return np.divide(x, 1.0 + np.exp(-x), dtype=np.float32)


def gelu_tanh(x: Floats) -> Floats:
    """Return the tanh form of GELU.

    Source: Hendrycks and Gimpel, arXiv 1606.08415.
    """
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    activated: Floats = np.multiply(0.5 * x, 1.0 + np.tanh(inner), dtype=np.float32)
    return activated


ACTIVATIONS: dict[Activation, Callable[[Floats], Floats]] = {
    Activation.SILU: silu,
    Activation.GELU_TANH: gelu_tanh,
}


def rotate(x: Floats, positions: NDArray[np.int64], table: RopeTable) -> Floats:
    """Return heads x (T, H, D) with their first n elements turned by position.

    Angles are float64: in float32 they would be off by 1e-3 at position 16K.
    """
    angles = positions[:, None, None] * np.array(table.inverse_frequencies, np.float64)
    cos = (np.cos(angles) * table.magnitude).astype(np.float32)
    sin = (np.sin(angles) * table.magnitude).astype(np.float32)
    pairs = len(table.inverse_frequencies)
    first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    if table.style is RopeStyle.INTERLEAVED:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    a, b = x[..., first], x[..., second]
    turned = x.copy()
    turned[..., first] = a * cos - b * sin
    turned[..., second] = a * sin + b * cos
    return turned


def attend(q: Floats, k: Floats, v: Floats, *, scale: float, visible: NDArray[np.bool_]) -> Floats:
    """Return attention (T, Hq, D) of q (T, Hq, D) over k, v (S, Hkv, D) where `visible` (T, S)."""
    rows, num_heads, head_dim = q.shape
    tokens, num_kv_heads, _ = k.shape
    group = num_heads // num_kv_heads
    # One product per KV head: the rows of all its query heads, (Hkv, T G, D) x (Hkv, D, S).
    queries = q.reshape(rows, num_kv_heads, group, head_dim).transpose(1, 0, 2, 3)
    scores = queries.reshape(num_kv_heads, rows * group, head_dim) @ k.transpose(1, 2, 0)
    scores = (scores * scale).reshape(num_kv_heads, rows, group, tokens)
    scores = np.where(visible[None, :, None, :], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out = weights.reshape(num_kv_heads, rows * group, tokens) @ v.transpose(1, 0, 2)
    by_row = out.reshape(num_kv_heads, rows, group, head_dim).transpose(1, 0, 2, 3)
    result: Floats = by_row.reshape(rows, num_heads, head_dim)
    return result
