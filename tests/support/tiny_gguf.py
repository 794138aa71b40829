"""Complete tiny model files: random weights in any formats, and a byte-level BPE tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.gguf_builder import GgufBuilder, Kind
from tests.support.tiny_models import TinyModel, tiny_model

_NORMAL, _CONTROL = 1, 3  # tokenizer.ggml.token_type

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# Pairs in the order they are learned; "\u0120" is how byte-level vocabularies spell a space.
MERGES = (
    "\u0120 t",
    "h e",
    "\u0120t he",
    "i n",
    "\u0120 a",
    "e r",
    "o n",
    "r e",
    "\u0120 w",
    "l l",
    "\u0120a n",
    "\u0120an d",
    "in g",
    "e ll",
    "h ell",
    "hell o",
    "\u0120 hello",
)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_characters() -> list[str]:
    """Return the printable character that stands for each byte.

    Source: openai/gpt-2 `encoder.py`, `bytes_to_unicode`: printable Latin-1 stands for itself, the
    other bytes take U+0100 and up in turn.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def tiny_tokens() -> list[str]:
    """Return the vocabulary: control tokens, the bytes, then one token per merge."""
    return [*CONTROL_TOKENS, *byte_characters(), *(pair.replace(" ", "") for pair in MERGES)]


def add_tokenizer(builder: GgufBuilder, *, pre: str = "smollm") -> GgufBuilder:
    """Add the keys of the tokenizer and its chat template."""
    tokens = tiny_tokens()
    types = [_CONTROL if token in CONTROL_TOKENS else _NORMAL for token in tokens]
    return (
        builder.add("tokenizer.ggml.model", "gpt2")
        .add("tokenizer.ggml.pre", pre)
        .add("tokenizer.ggml.tokens", tokens)
        .add("tokenizer.ggml.token_type", types, Kind.I32)
        .add("tokenizer.ggml.merges", list(MERGES))
        .add("tokenizer.ggml.bos_token_id", tokens.index("<|im_start|>"))
        .add("tokenizer.ggml.eos_token_id", tokens.index("<|im_end|>"))
        .add("tokenizer.ggml.unknown_token_id", tokens.index("<|endoftext|>"))
        .add("tokenizer.ggml.padding_token_id", tokens.index("<|im_end|>"))
        .add("tokenizer.ggml.add_bos_token", False)
        .add("tokenizer.ggml.add_space_prefix", False)
        .add("tokenizer.chat_template", CHAT_TEMPLATE)
    )


def add_hyper_parameters(builder: GgufBuilder, model: TinyModel) -> GgufBuilder:
    """Add the architecture's keys, as converters write them."""
    config = model.config
    arch = config.architecture
    builder.add("general.architecture", arch).add("general.name", f"tiny {arch}")
    builder.add(f"{arch}.block_count", config.num_layers)
    builder.add(f"{arch}.context_length", config.context_length)
    builder.add(f"{arch}.embedding_length", config.hidden_size)
    builder.add(f"{arch}.feed_forward_length", config.feed_forward_size)
    builder.add(f"{arch}.attention.head_count", config.num_heads)
    builder.add(f"{arch}.attention.head_count_kv", config.num_kv_heads)
    builder.add(f"{arch}.attention.key_length", config.head_dim)
    builder.add(f"{arch}.attention.value_length", config.head_dim)
    builder.add(f"{arch}.attention.layer_norm_rms_epsilon", config.norm_epsilon)
    builder.add(f"{arch}.rope.freq_base", config.rope.base)
    builder.add(f"{arch}.rope.dimension_count", config.rope.dimension_count)
    builder.add(f"{arch}.vocab_size", config.vocab_size)
    if config.sliding_window is not None:
        builder.add(f"{arch}.attention.sliding_window", config.sliding_window)
    return builder


def tiny_gguf(
    architecture: str = "llama",
    formats: Sequence[str] = ("q8_0",),
    seed: int = 0,
    *,
    tied: bool = False,
    **changes: Any,
) -> GgufBuilder:
    """Return the builder of a whole model file; `add` and `remove` break it, `build` gives bytes.

    Args:
        architecture: "llama", "qwen2" or "gemma3".
        formats: Weight formats that the matrices take in turn; vectors are f32.
        seed: Same seed, same weights.
        tied: Leave `output.weight` out.
        changes: Fields of `ModelConfig` to set otherwise; `sharpness` of attention.
    """
    changes.setdefault("vocab_size", len(tiny_tokens()))
    model = tiny_model(architecture, formats, seed, tied=tied, **changes)
    builder = add_tokenizer(add_hyper_parameters(GgufBuilder(), model))
    for name, tensor in model.tensors.items():
        builder.tensor(name, tensor.type_name, tensor.shape, tensor.data.tobytes())
    return builder
