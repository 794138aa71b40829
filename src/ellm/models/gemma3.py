"""Gemma 3 (text): norms around both sub-layers, query and key norms, sliding and global layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ellm.config.model import ModelConfig, RopeConfig
from ellm.errors import InvalidModelError
from ellm.models.decoder import DecoderSlots, new_builder, new_slots, qkv_parts
from ellm.models.rope import rope_table
from ellm.models.tensors import ModelTensors
from ellm.program.builder import ProgramBuilder
from ellm.program.ops import Activation, Program, RopeStyle

_GLOBAL_EVERY = 6
_SLIDING_ROPE_BASE = 10000.0
_LAYERS_OF_27B = 62


@dataclass(frozen=True, slots=True)
class _LayerKind:
    """What sliding and global layers differ in."""

    rope_table: int
    window: int | None


def record_gemma3(config: ModelConfig, tensors: ModelTensors) -> Program:
    """Record a gemma3 model.

    Sliding layers rotate with their own base and without the scaling of the global layers.

    Source: Gemma 3 technical report, arXiv 2503.19786; tensor names, defaults and the norm
    weights (which already include the 1 of `1 + w`) as in llama.cpp.
    """
    size, vocab = config.hidden_size, config.vocab_size
    builder = new_builder(config)
    slots = new_slots(builder, config)
    everywhere = _LayerKind(
        builder.rope_table(rope_table(config.rope, RopeStyle.HALVES)), window=None
    )
    sliding = _LayerKind(
        builder.rope_table(rope_table(_sliding_rope(config), RopeStyle.HALVES)),
        window=config.sliding_window,
    )
    builder.embed(
        tensors.tensor("token_embd.weight", vocab, size), slots.stream, scale=math.sqrt(size)
    )
    for slides in _sliding_layers(config):
        _record_layer(builder, slots, sliding if slides else everywhere, config, tensors)
    builder.head(
        slots.stream, tensors.tensor("output_norm.weight", size), tensors.output(vocab, size)
    )
    return builder.finish()


def _record_layer(
    builder: ProgramBuilder,
    slots: DecoderSlots,
    kind: _LayerKind,
    config: ModelConfig,
    tensors: ModelTensors,
) -> None:
    size, inner, head_dim = config.hidden_size, config.feed_forward_size, config.head_dim
    blk = f"blk.{builder.begin_layer()}"
    branch = builder.slot("branch", size)

    builder.norm(slots.stream, tensors.tensor(f"{blk}.attn_norm.weight", size), slots.normed)
    builder.linear(slots.normed, qkv_parts(tensors, blk, config), slots.qkv)
    builder.rope_append(
        slots.qkv,
        kind.rope_table,
        q_norm=tensors.tensor(f"{blk}.attn_q_norm.weight", head_dim),
        k_norm=tensors.tensor(f"{blk}.attn_k_norm.weight", head_dim),
    )
    builder.attention(slots.qkv, slots.attended, scale=_attention_scale(config), window=kind.window)
    output = tensors.linear(f"{blk}.attn_output", size, slots.attended.width)
    builder.linear(slots.attended, (output,), branch)
    post_attention = tensors.tensor(f"{blk}.post_attention_norm.weight", size)
    builder.norm_add(branch, post_attention, slots.stream)

    builder.norm(slots.stream, tensors.tensor(f"{blk}.ffn_norm.weight", size), slots.normed)
    gate = tensors.linear(f"{blk}.ffn_gate", inner, size)
    up = tensors.linear(f"{blk}.ffn_up", inner, size)
    builder.gated_linear(slots.normed, gate, up, Activation.GELU_TANH, slots.gated)
    builder.linear(slots.gated, (tensors.linear(f"{blk}.ffn_down", size, inner),), branch)
    post_feed_forward = tensors.tensor(f"{blk}.post_ffw_norm.weight", size)
    builder.norm_add(branch, post_feed_forward, slots.stream)


def _sliding_rope(config: ModelConfig) -> RopeConfig:
    base = config.sliding_rope_base
    return RopeConfig(
        base=_SLIDING_ROPE_BASE if base is None else base,
        dimension_count=config.rope.dimension_count,
    )


def _sliding_layers(config: ModelConfig) -> tuple[bool, ...]:
    if config.sliding_window is None:
        return (False,) * config.num_layers
    pattern = config.sliding_pattern
    if isinstance(pattern, tuple):
        if len(pattern) != config.num_layers:
            raise InvalidModelError(
                "gemma3.attention.sliding_window_pattern",
                found=f"{len(pattern)} flags",
                expected=f"one for each of {config.num_layers} layers",
            )
        return pattern
    every = _GLOBAL_EVERY if pattern is None else pattern
    return tuple((layer + 1) % every != 0 for layer in range(config.num_layers))


def _attention_scale(config: ModelConfig) -> float:
    """Return 1/sqrt(D), or what the 27B was trained with: 1/sqrt(E/Hq) (its D is not E/Hq)."""
    if config.num_layers == _LAYERS_OF_27B:
        return 1 / math.sqrt(config.hidden_size // config.num_heads)
    return 1 / math.sqrt(config.head_dim)
