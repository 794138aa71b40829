"""What a model file holds, as `ellm show` tells it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ellm import native
from ellm.config.engine import KV_TYPES
from ellm.program.executor import BLOCK_TOKENS
from ellm.units import count_of, format_bytes, format_parameters

if TYPE_CHECKING:
    from ellm.config.model import ModelConfig
    from ellm.formats.gguf import GgufFile

_EMBEDDING = "token_embd.weight"
_OUTPUT = "output.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """The facts of one model file.

    Attributes:
        path: The file, or its first shard.
        architecture: GGUF's name.
        name: What the publisher calls it, or None.
        parameters: Numbers in all tensors.
        quantization: Bytes per weight format, largest first.
        context_length: Tokens it was trained to read.
        vocab_size: V.
        num_layers: Transformer layers.
        kv_bytes_per_token: Bytes of KV cache per token, by storage type.
        weight_bytes_per_token: Bytes of weights that decoding one token reads.
        file_bytes: Size of all shards.
        licence: As the file states it, or None.
        has_chat_template: Whether it takes messages.
    """

    path: str
    architecture: str
    name: str | None
    parameters: int
    quantization: dict[str, int]
    context_length: int
    vocab_size: int
    num_layers: int
    kv_bytes_per_token: dict[str, int]
    weight_bytes_per_token: int
    file_bytes: int
    licence: str | None
    has_chat_template: bool

    def lines(self) -> list[str]:
        """Return the card for people, one fact a line."""
        mix = ", ".join(f"{kind} {format_bytes(n)}" for kind, n in self.quantization.items())
        kv = ", ".join(
            f"{format_bytes(n)} as {kind}" for kind, n in self.kv_bytes_per_token.items()
        )
        full = ", ".join(
            format_bytes(n * self.context_length) for n in self.kv_bytes_per_token.values()
        )
        rows = {
            "file": self.path,
            "name": self.name or "not stated",
            "architecture": f"{self.architecture}, {count_of(self.num_layers, 'layer')}",
            "parameters": format_parameters(self.parameters),
            "size": format_bytes(self.file_bytes),
            "quantisation": mix,
            "context": count_of(self.context_length, "token"),
            "vocabulary": count_of(self.vocab_size, "token"),
            "read per token": f"{format_bytes(self.weight_bytes_per_token)} of weights",
            "KV per token": f"{kv} ({full} for the whole context)",
            "chat template": "yes" if self.has_chat_template else "no (a base model)",
            "licence": self.licence or "not stated",
        }
        return [f"{name:<15} {text}" for name, text in rows.items()]


def model_card(file: GgufFile, config: ModelConfig, licence: str | None) -> ModelCard:
    """Return the card of an open model file.

    Args:
        file: The file.
        config: Its hyper-parameters.
        licence: What to say when the file states none.
    """
    mix: Counter[str] = Counter()
    for tensor in file.tensors.values():
        mix[tensor.type_name] += tensor.nbytes
    template = file.metadata.get("tokenizer.chat_template")
    return ModelCard(
        path=str(file.path),
        architecture=config.architecture,
        name=_text(file, "general.name"),
        parameters=sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
        quantization=dict(mix.most_common()),
        context_length=config.context_length,
        vocab_size=config.vocab_size,
        num_layers=config.num_layers,
        kv_bytes_per_token={kind: kv_bytes_per_token(config, kind) for kind in KV_TYPES},
        weight_bytes_per_token=weight_bytes_per_token(file),
        file_bytes=sum(shard.nbytes for shard in file.shards),
        licence=_text(file, "general.license") or licence,
        has_chat_template=isinstance(template, str) and bool(template.strip()),
    )


def kv_bytes_per_token(config: ModelConfig, kv_type: str) -> int:
    """Return the bytes of one token's keys and values in all layers, scales included."""
    shape = (config.num_layers, config.num_kv_heads, config.head_dim, kv_type)
    return native.kv_block_bytes(shape) // BLOCK_TOKENS


def weight_bytes_per_token(file: GgufFile) -> int:
    """Return the bytes of weights that decoding one token reads.

    That is every tensor once, but of an embedding that is not the output matrix as well only one
    row.
    """
    total = sum(tensor.nbytes for tensor in file.tensors.values())
    if _OUTPUT not in file.tensors or _EMBEDDING not in file.tensors:
        return total
    embedding = file.tensors[_EMBEDDING]
    return total - embedding.nbytes + embedding.nbytes // embedding.shape[0]


def _text(file: GgufFile, key: str) -> str | None:
    value = file.metadata.get(key)
    return value if isinstance(value, str) and value.strip() else None
