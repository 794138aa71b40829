"""A real tokenizer whose tokens are single bytes, with BOS 256 and end of turn 257."""

from __future__ import annotations

from ellm.tokenizers.tokenizer import Tokenizer
from tests.support.tiny_gguf import byte_characters

BOS, END = 256, 257
VOCAB_SIZE = 258
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def byte_tokenizer(*, add_bos: bool = False, chat_template: bool = True) -> Tokenizer:
    """Return the tokenizer; token i below 256 is byte i."""
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*byte_characters(), "<s>", "</s>"],
        "tokenizer.ggml.token_type": [1] * 256 + [3, 3],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.add_bos_token": add_bos,
    }
    if chat_template:
        metadata["tokenizer.chat_template"] = CHAT_TEMPLATE
    return Tokenizer.from_gguf(metadata)
