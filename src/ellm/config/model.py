"""The hyper-parameters of a model, checked once when its file is read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RopeScaling(Enum):
    """How rotation frequencies are stretched beyond the trained context."""

    NONE = "none"
    LINEAR = "linear"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
        base: Base of the geometric row of frequencies (`rope_theta`).
        dimension_count: Elements of a head that turn; even, at most head_dim.
        scaling: How `factor` stretches the frequencies.
        factor: Longest position over longest trained position; 1.0 without scaling.
        original_context_length: Tokens of context the model was trained with, for YaRN.
        extrapolation_factor: YaRN's share of unscaled high frequencies.
        attention_factor: Extra factor on cos and sin.
        beta_fast: Turns over the original context above which YaRN leaves a frequency alone.
        beta_slow: Turns below which YaRN divides a frequency by the whole factor.
        frequency_factors: Divisors of each frequency (llama3 scaling), or None.
    """

    base: float
    dimension_count: int
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    original_context_length: int = 0
    extrapolation_factor: float = 1.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    frequency_factors: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything about a model but its weights and its vocabulary's text.

    Attributes:
        architecture: GGUF's name, a key of `ellm.models.ARCHITECTURES`.
        vocab_size: V, rows of the embedding.
        context_length: Longest sequence the model was trained for, in tokens.
        num_layers: Transformer layers.
        hidden_size: E.
        feed_forward_size: F.
        num_heads: Hq.
        num_kv_heads: Hkv; divides Hq.
        head_dim: D.
        norm_epsilon: Added to the mean square in every RMS norm.
        rope: Rotation of layers that see the whole context.
        sliding_window: Tokens a sliding layer sees, or None if no layer slides.
        sliding_pattern: Which layers slide, as the file says: every n-th layer is global, or one
            flag per layer; None leaves it to the architecture.
        sliding_rope_base: Frequency base of sliding layers, or None for the architecture's default.
    """

    architecture: str
    vocab_size: int
    context_length: int
    num_layers: int
    hidden_size: int
    feed_forward_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_epsilon: float
    rope: RopeConfig
    sliding_window: int | None = None
    sliding_pattern: int | tuple[bool, ...] | None = None
    sliding_rope_base: float | None = None
