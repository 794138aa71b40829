"""What the decoder architectures share: their slots and the matrices before attention."""

from __future__ import annotations

from dataclasses import dataclass

from ellm.config.model import ModelConfig
from ellm.errors import UnsupportedError
from ellm.models.tensors import ModelTensors
from ellm.program.builder import ProgramBuilder
from ellm.program.ops import LinearPart, Slot


@dataclass(frozen=True, slots=True)
class DecoderSlots:
    """The slots of a decoder layer: every layer reuses the same ones.

    Attributes:
        stream: The residual stream (T, E).
        normed: What a sub-layer reads (T, E).
        qkv: Queries, keys and values (T, (Hq + 2 Hkv) D).
        attended: Attention's output (T, Hq D).
        gated: The inner activations of the feed-forward layer (T, F).
    """

    stream: Slot
    normed: Slot
    qkv: Slot
    attended: Slot
    gated: Slot


def new_builder(config: ModelConfig) -> ProgramBuilder:
    """Return a builder with the sizes that all layers share."""
    return ProgramBuilder(
        vocab_size=config.vocab_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        epsilon=config.norm_epsilon,
    )


def new_slots(builder: ProgramBuilder, config: ModelConfig) -> DecoderSlots:
    """Return the slots of a decoder of this size."""
    heads = config.num_heads + 2 * config.num_kv_heads
    return DecoderSlots(
        stream=builder.slot("stream", config.hidden_size),
        normed=builder.slot("normed", config.hidden_size),
        qkv=builder.slot("qkv", heads * config.head_dim),
        attended=builder.slot("attended", config.num_heads * config.head_dim),
        gated=builder.slot("gated", config.feed_forward_size),
    )


def qkv_parts(
    tensors: ModelTensors, prefix: str, config: ModelConfig, *, needs_bias: bool = False
) -> tuple[LinearPart, ...]:
    """Return the query, key and value matrices of a layer."""
    q_width = config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    return tuple(
        tensors.linear(f"{prefix}.{name}", width, config.hidden_size, needs_bias=needs_bias)
        for name, width in (("attn_q", q_width), ("attn_k", kv_width), ("attn_v", kv_width))
    )


def refuse_sliding_window(config: ModelConfig) -> None:
    """Refuse a window that would change results, for architectures that attend to everything.

    Raises:
        UnsupportedError: The window is shorter than the context.
    """
    window = config.sliding_window
    if window is not None and window < config.context_length:
        raise UnsupportedError(
            f"{config.architecture}.attention.sliding_window is {window} tokens of a context of "
            f"{config.context_length}: sliding layers are not implemented for this architecture"
        )
