"""GGUF metadata of small vocabularies, complete enough to encode any text."""

from __future__ import annotations

from collections.abc import Sequence

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_pieces() -> list[str]:
    """Return GPT-2's printable stand-ins for the bytes 0 to 255.

    Source: openai/gpt-2 `src/encoder.py`, bytes_to_unicode.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def byte_level(
    merges: Sequence[str] = ("h e", "l l", "he ll", "hell o", "\u0120 w", "1 2", "12 3"),
    control: Sequence[str] = ("<s>", "<|im_start|>", "<|im_end|>"),
    user_defined: Sequence[str] = ("<think>", "</think>"),
    *,
    pre: str = "gpt-2",
    template: str | None = CHATML,
) -> dict[str, object]:
    """Return a byte-level vocabulary: 256 bytes, one token per merge, then the others."""
    merged = [merge.replace(" ", "") for merge in merges]
    tokens = [*byte_pieces(), *merged, *control, *user_defined]
    types = [NORMAL] * (256 + len(merged)) + [CONTROL] * len(control)
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types + [USER_DEFINED] * len(user_defined),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": tokens.index(control[0]),
        "tokenizer.ggml.eos_token_id": tokens.index(control[-1]),
    }
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    return metadata


def sentencepiece(
    pieces: Sequence[tuple[str, float]] = (
        ("\u2581", -8.0),
        ("a", -8.0),
        ("b", -8.0),
        ("\u2581a", -2.0),
        ("ab", -1.0),
        ("\u2581ab", -3.0),
        ("\u2581\u2581", -5.0),
        ("\u2581\u2581\u2581", -5.0),
        ("\u2581\u2581\u2581\u2581", -5.0),
    ),
    user_defined: Sequence[str] = ("\n", "\n\n"),
    *,
    space_prefix: bool = True,
    template: str | None = None,
) -> dict[str, object]:
    """Return a SentencePiece vocabulary: <unk>, <s>, </s>, 256 bytes, `pieces`, user-defined."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    scores = [0.0] * len(tokens)
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*tokens, *(text for text, _ in pieces), *user_defined],
        "tokenizer.ggml.token_type": types
        + [NORMAL] * len(pieces)
        + [USER_DEFINED] * len(user_defined),
        "tokenizer.ggml.scores": [*scores, *(score for _, score in pieces)]
        + [-1000.0] * len(user_defined),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": space_prefix,
    }
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    return metadata
