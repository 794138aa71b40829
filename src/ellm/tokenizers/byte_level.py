"""Byte-level BPE: GPT-2's way of writing bytes as printable characters, and its encoder."""

from __future__ import annotations

from typing import Any

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from ellm.tokenizers.pretokenizers import PreTokenizer
from ellm.tokenizers.vocabulary import Vocabulary


def _byte_characters() -> list[str]:
    """Return the character that stands for each byte.

    Source: GPT-2 `encoder.py`, `bytes_to_unicode`: printable Latin-1 bytes stand for themselves,
    the others are numbered from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {byte: chr(0x100 + i) for i, byte in enumerate(others)}
    return [shifted.get(byte, chr(byte)) for byte in range(256)]


BYTE_CHARACTERS = _byte_characters()
_BYTES = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def piece_bytes(piece: str) -> bytes:
    """Return the bytes a piece stands for; a piece with foreign characters stands for its UTF-8."""
    try:
        return bytes([_BYTES[character] for character in piece])
    except KeyError:
        return piece.encode()


def build_byte_level(vocabulary: Vocabulary, rules: PreTokenizer) -> Tokenizer:
    """Build the encoder of plain text: `rules` cut, bytes become characters, merges run.

    Bytes that have no piece of their own are dropped, as llama.cpp does. SmolLM2 lacks 21: rare
    control characters, and first bytes of UTF-8 that no assigned character starts with.

    Raises:
        InvalidModelError: A merge does not join two pieces to a third.
    """
    vocab = {piece: i for i, piece in enumerate(vocabulary.pieces)}
    try:
        # A tuple of another length than two is refused by the library.
        merges: Any = [tuple(merge.split(" ")) for merge in vocabulary.merges]
        model = models.BPE(vocab=vocab, merges=merges, ignore_merges=rules.ignore_merges)
    except Exception as error:  # the library raises nothing narrower
        raise vocabulary.bad_merge() from error
    encoder = Tokenizer(model)
    encoder.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return encoder
