"""Llama (also SmolLM2, Mistral, TinyLlama): pre-norms, interleaved rotation, SiLU gate."""

from __future__ import annotations

from ellm.config.model import ModelConfig
from ellm.models.decoder import (
    DecoderSlots,
    new_builder,
    new_slots,
    qkv_parts,
    refuse_sliding_window,
)
from ellm.models.rope import rope_table
from ellm.models.tensors import ModelTensors
from ellm.program.builder import ProgramBuilder
from ellm.program.ops import Activation, Program, RopeStyle


def record_llama(config: ModelConfig, tensors: ModelTensors) -> Program:
    """Record a llama model; biases are used where the file has them.

    Source: Touvron et al., arXiv 2302.13971; tensor names and rotation order as in llama.cpp.
    """
    refuse_sliding_window(config)
    size, vocab = config.hidden_size, config.vocab_size
    builder = new_builder(config)
    slots = new_slots(builder, config)
    table = builder.rope_table(rope_table(config.rope, RopeStyle.INTERLEAVED))
    builder.embed(tensors.tensor("token_embd.weight", vocab, size), slots.stream)
    for _ in range(config.num_layers):
        _record_layer(builder, slots, table, config, tensors)
    builder.head(
        slots.stream, tensors.tensor("output_norm.weight", size), tensors.output(vocab, size)
    )
    return builder.finish()


def _record_layer(
    builder: ProgramBuilder,
    slots: DecoderSlots,
    table: int,
    config: ModelConfig,
    tensors: ModelTensors,
) -> None:
    size, inner = config.hidden_size, config.feed_forward_size
    blk = f"blk.{builder.begin_layer()}"

    builder.norm(slots.stream, tensors.tensor(f"{blk}.attn_norm.weight", size), slots.normed)
    builder.linear(slots.normed, qkv_parts(tensors, blk, config), slots.qkv)
    builder.rope_append(slots.qkv, table)
    builder.attention(slots.qkv, slots.attended, scale=config.head_dim**-0.5)
    output = tensors.linear(f"{blk}.attn_output", size, slots.attended.width)
    builder.linear_add(slots.attended, output, slots.stream)

    builder.norm(slots.stream, tensors.tensor(f"{blk}.ffn_norm.weight", size), slots.normed)
    gate = tensors.linear(f"{blk}.ffn_gate", inner, size)
    up = tensors.linear(f"{blk}.ffn_up", inner, size)
    builder.gated_linear(slots.normed, gate, up, Activation.SILU, slots.gated)
    down = tensors.linear(f"{blk}.ffn_down", size, inner)
    builder.linear_add(slots.gated, down, slots.stream)
