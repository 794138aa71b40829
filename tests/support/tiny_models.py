"""Tiny random models of every architecture, in any mix of weight formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ellm.config.model import ModelConfig, RopeConfig
from ellm.formats.quantization import FORMATS, decode
from ellm.models import build_program
from ellm.program.ops import Program
from tests.support.random_blocks import random_weights


class TinyTensor(NamedTuple):
    """One tensor as a GGUF file would hold it."""

    type_name: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


@dataclass(frozen=True)
class TinyModel:
    """A model in memory; `weights` decodes a tensor to float32 by name and keeps it."""

    config: ModelConfig
    program: Program
    tensors: dict[str, TinyTensor]
    _decoded: dict[str, NDArray[np.float32]] = field(default_factory=dict, repr=False)

    def weights(self, name: str) -> NDArray[np.float32]:
        if name not in self._decoded:
            tensor = self.tensors[name]
            self._decoded[name] = decode(tensor.type_name, tensor.data, tensor.shape)
        return self._decoded[name]


# By the longest block of the formats used: every matrix's columns are a multiple of it.
_SIZES = {
    1: {"hidden_size": 44, "feed_forward_size": 76, "num_heads": 6, "head_dim": 10},
    32: {"hidden_size": 96, "feed_forward_size": 160, "num_heads": 6, "head_dim": 16},
    256: {"hidden_size": 256, "feed_forward_size": 512, "num_heads": 8, "head_dim": 32},
}


def tiny_config(architecture: str, block_weights: int = 1, **changes: Any) -> ModelConfig:
    """Return the configuration of a tiny model; `changes` are fields of `ModelConfig`."""
    sizes: dict[str, Any] = _SIZES[block_weights] | {
        "architecture": architecture,
        "vocab_size": 131,
        "context_length": 512,
        "num_layers": 3,
        "num_kv_heads": 2,
        "norm_epsilon": 1e-5,
    }
    if architecture == "gemma3":
        # Seven layers so that one is global; a window that is no multiple of a block.
        sizes |= {"num_layers": 7, "sliding_window": 37, "norm_epsilon": 1e-6}
    head_dim = changes.get("head_dim", sizes["head_dim"])
    sizes["rope"] = RopeConfig(base=10000.0, dimension_count=head_dim)
    return ModelConfig(**(sizes | changes))


def tiny_shapes(config: ModelConfig, *, tied: bool) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor of a model of this size."""
    size, inner = config.hidden_size, config.feed_forward_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab_size, size)}
    if not tied:
        shapes["output.weight"] = (config.vocab_size, size)
    shapes["output_norm.weight"] = (size,)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (size,),
        "attn_q.weight": (q, size),
        "attn_k.weight": (kv, size),
        "attn_v.weight": (kv, size),
        "attn_output.weight": (size, q),
        "ffn_norm.weight": (size,),
        "ffn_gate.weight": (inner, size),
        "ffn_up.weight": (inner, size),
        "ffn_down.weight": (size, inner),
    }
    if config.architecture == "qwen2":
        layer |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if config.architecture == "gemma3":
        layer |= {
            "attn_q_norm.weight": (config.head_dim,),
            "attn_k_norm.weight": (config.head_dim,),
            "post_attention_norm.weight": (size,),
            "post_ffw_norm.weight": (size,),
        }
    for i in range(config.num_layers):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def tiny_model(
    architecture: str,
    formats: Sequence[str] = ("f32",),
    seed: int = 0,
    *,
    tied: bool = False,
    sharpness: float = 1.0,
    **changes: Any,
) -> TinyModel:
    """Return a random model whose matrices take the formats in turn; vectors are f32.

    Args:
        architecture: A key of `ellm.models.ARCHITECTURES`.
        formats: Names of `FORMATS`; the longest block decides the sizes (`_SIZES`).
        seed: Same seed, same weights.
        tied: Leave `output.weight` out.
        sharpness: Factor on scores of attention: from about 4 on, few tokens have most of it.
        changes: Fields of `ModelConfig` to set otherwise.
    """
    rng = np.random.default_rng(seed)
    block_weights = max(FORMATS[name].block_weights for name in formats)
    config = tiny_config(architecture, block_weights, **changes)
    shapes = tiny_shapes(config, tied=tied)
    tensors: dict[str, TinyTensor] = {}
    matrices = 0
    for name, shape in shapes.items():
        if len(shape) == 1:
            tensors[name] = TinyTensor("f32", shape, _vector(name, shape[0], rng))
            continue
        type_name = formats[matrices % len(formats)]
        matrices += 1
        factor = sharpness if name.endswith("attn_q.weight") else 1.0
        data = random_weights(type_name, shape, factor / math.sqrt(shape[1]), rng)
        tensors[name] = TinyTensor(type_name, shape, data)
    return TinyModel(config, build_program(config, tensors), tensors)


def _vector(name: str, size: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Norm weights lie around 1, biases around 0."""
    centre = 0.0 if name.endswith(".bias") else 1.0
    return (centre + 0.2 * rng.standard_normal(size)).astype(np.float32).view(np.uint8)
