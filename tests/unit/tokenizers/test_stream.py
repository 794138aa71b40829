"""Streamed text is never half a character and adds up to the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ellm.tokenizers import StreamDecoder, Tokenizer
from tests.support.tiny_vocabularies import byte_level, sentencepiece

TOKENIZERS = [
    Tokenizer.from_gguf(byte_level()),
    Tokenizer.from_gguf(sentencepiece()),
    Tokenizer.from_gguf(sentencepiece(space_prefix=False)),
]

token_lists = st.lists(st.integers(0, 262), max_size=40)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(ids=token_lists, skip_special=st.booleans())
def test_pushes_and_flush_add_up_to_decode(
    tokenizer: Tokenizer, ids: list[int], skip_special: bool
) -> None:
    stream = StreamDecoder(tokenizer, skip_special=skip_special)
    shown = "".join(map(stream.push, ids)) + stream.flush()
    assert shown == tokenizer.decode(ids, skip_special=skip_special)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(text=st.text(min_size=1).filter(lambda text: "\u2581" not in text))
def test_valid_text_shows_no_replacement_character(tokenizer: Tokenizer, text: str) -> None:
    stream = StreamDecoder(tokenizer)
    shown = [stream.push(i) for i in tokenizer.encode(text)]
    assert stream.flush() == ""
    assert "".join(shown).count("\ufffd") == text.count("\ufffd")


def test_a_character_appears_with_its_last_byte() -> None:
    stream = StreamDecoder(TOKENIZERS[0])
    assert [stream.push(byte) for byte in "a\U0001f600b".encode()] == [
        "a",
        "",
        "",
        "",
        "\U0001f600",
        "b",
    ]


def test_an_unfinished_character_is_flushed_as_a_replacement() -> None:
    stream = StreamDecoder(TOKENIZERS[0])
    assert stream.push(0xF0) == ""
    assert stream.push(0x9F) == ""
    assert stream.flush() == "\ufffd"


def test_a_broken_character_does_not_hold_back_the_next() -> None:
    stream = StreamDecoder(TOKENIZERS[0])
    assert stream.push(0xE2) == ""
    assert stream.push(ord("a")) == "\ufffda"


def test_only_the_first_space_prefix_is_taken_away() -> None:
    tokenizer = TOKENIZERS[1]
    ids = [1, *tokenizer.encode("ab"), *tokenizer.encode("ab")]
    stream = StreamDecoder(tokenizer)
    assert [stream.push(i) for i in ids] == ["", "ab", " ab"]
