"""Text to ids and back, on vocabularies small enough to check by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ellm.errors import RequestError
from ellm.tokenizers import Tokenizer
from tests.support.tiny_vocabularies import CONTROL, byte_level, sentencepiece

BYTE_LEVEL = Tokenizer.from_gguf(byte_level())
SENTENCEPIECE = Tokenizer.from_gguf(sentencepiece())
UNPREFIXED = Tokenizer.from_gguf(sentencepiece(space_prefix=False))
ALL = (BYTE_LEVEL, SENTENCEPIECE, UNPREFIXED)

# A private character of SentencePiece: it stands for a space, so it cannot come back as itself.
text_without_lower_block = st.text().filter(lambda text: "\u2581" not in text)
text_with_names = st.lists(
    st.sampled_from(
        ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<think>", "\n", "\n\n", " ", "ab"]
    )
    | st.text(max_size=5)
).map("".join)


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[bytes]:
    return [tokenizer.token_bytes(i) for i in ids]


def test_merges_run_best_first_within_words() -> None:
    assert pieces(BYTE_LEVEL, BYTE_LEVEL.encode("hello world 123")) == [
        b"hello",
        b" w",
        b"o",
        b"r",
        b"l",
        b"d",
        b" ",
        b"123",
    ]


def test_ignore_merges_takes_a_word_that_is_a_token() -> None:
    # "lo" is a token no merge leads to: only llama3's rule finds it.
    metadata = byte_level(merges=["h e"], control=["<s>", "<e>"], user_defined=[], pre="llama-bpe")
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "lo"]  # type: ignore[misc]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1]  # type: ignore[misc]
    llama3 = Tokenizer.from_gguf(metadata)
    assert pieces(llama3, llama3.encode("lo")) == [b"lo"]
    metadata["tokenizer.ggml.pre"] = "qwen2"
    qwen2 = Tokenizer.from_gguf(metadata)
    assert pieces(qwen2, qwen2.encode("lo")) == [b"l", b"o"]


def test_sentencepiece_joins_the_best_scored_pair_first() -> None:
    # "ab" (-1) beats "\u2581a" (-2) although that stands further left; then "\u2581ab" forms.
    assert pieces(SENTENCEPIECE, SENTENCEPIECE.encode("ab")) == [b" ab"]
    assert pieces(SENTENCEPIECE, SENTENCEPIECE.encode("a")) == [b" a"]
    assert pieces(UNPREFIXED, UNPREFIXED.encode("ba")) == [b"b", b"a"]


@pytest.mark.parametrize(("count", "expected"), [(1, [1]), (4, [4]), (5, [4, 1]), (11, [4, 4, 3])])
def test_runs_of_equal_score_grow_from_the_left(count: int, expected: list[int]) -> None:
    found = pieces(UNPREFIXED, UNPREFIXED.encode(" " * count))
    assert [len(piece) for piece in found] == expected


def test_characters_without_a_piece_become_their_bytes() -> None:
    assert pieces(UNPREFIXED, UNPREFIXED.encode("a\u00e9")) == [b"a", b"\xc3", b"\xa9"]


def test_characters_without_piece_or_bytes_become_unknown() -> None:
    metadata = sentencepiece(user_defined=[])
    kept = [0, 1, 2, *range(259, 268)]
    for key in ("tokens", "token_type", "scores"):
        values = metadata["tokenizer.ggml." + key]
        metadata["tokenizer.ggml." + key] = [values[i] for i in kept]  # type: ignore[index]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("\u00e9\u00e9") == [3, 0]
    assert tokenizer.decode([3, 0]) == ""


def test_space_prefix_follows_every_literal_token() -> None:
    ids = SENTENCEPIECE.encode("a\na<s>a", parse_special=True)
    assert pieces(SENTENCEPIECE, ids) == [b" a", b"\n", b" a", b"<s>", b" a"]


def test_control_tokens_are_matched_only_on_request() -> None:
    text = "<|im_start|>x<think>"
    plain = pieces(BYTE_LEVEL, BYTE_LEVEL.encode(text))
    parsed = pieces(BYTE_LEVEL, BYTE_LEVEL.encode(text, parse_special=True))
    assert parsed == [b"<|im_start|>", b"x", b"<think>"]
    assert plain == [*(bytes([byte]) for byte in b"<|im_start|>x"), b"<think>"]


def test_the_longest_literal_wins() -> None:
    assert pieces(UNPREFIXED, UNPREFIXED.encode("\n\n\n")) == [b"\n\n", b"\n"]


def test_merges_into_a_control_token_are_taken_apart() -> None:
    metadata = byte_level(merges=["< s", "<s >"])
    types = metadata["tokenizer.ggml.token_type"]
    assert isinstance(types, list)
    types[257] = CONTROL
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tokens[258] = "<S>"
    assert tokens[257] == "<s>"
    tokenizer = Tokenizer.from_gguf(metadata)
    assert pieces(tokenizer, tokenizer.encode("<s>")) == [b"<", b"s", b">"]


@pytest.mark.parametrize("tokenizer", ALL)
@given(text=text_with_names)
def test_plain_text_never_becomes_a_control_token(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode(text))


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, UNPREFIXED])
@given(text=text_without_lower_block | text_with_names)
def test_decode_undoes_encode(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=text_without_lower_block.filter(lambda text: "\n" not in text))
def test_decode_takes_the_space_prefix_away(text: str) -> None:
    assert SENTENCEPIECE.decode(SENTENCEPIECE.encode(text)) == text


@pytest.mark.parametrize("tokenizer", ALL)
def test_empty_text_has_no_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""


def test_decode_shows_control_tokens_on_request() -> None:
    ids = BYTE_LEVEL.encode("<s>hello", parse_special=True)
    assert BYTE_LEVEL.decode(ids) == "hello"
    assert BYTE_LEVEL.decode(ids, skip_special=False) == "<s>hello"


def test_bytes_that_are_no_utf8_decode_to_the_replacement_character() -> None:
    assert BYTE_LEVEL.decode([0xE2, 0x80, 0x41]) == "\ufffdA"


def test_bos_is_added_on_request() -> None:
    assert SENTENCEPIECE.encode("a", add_bos=True) == [1, *SENTENCEPIECE.encode("a")]


def test_bos_defaults_follow_the_kind() -> None:
    assert SENTENCEPIECE.add_bos
    assert not BYTE_LEVEL.add_bos
    assert Tokenizer.from_gguf(byte_level(pre="llama-bpe")).add_bos
    explicit = byte_level() | {"tokenizer.ggml.add_bos_token": True}
    assert Tokenizer.from_gguf(explicit).add_bos


def test_adding_a_bos_the_model_lacks_is_refused() -> None:
    metadata = byte_level()
    del metadata["tokenizer.ggml.bos_token_id"]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert not tokenizer.add_bos
    with pytest.raises(RequestError, match="BOS"):
        tokenizer.encode("a", add_bos=True)


@pytest.mark.parametrize("tokenizer", ALL)
def test_lone_surrogates_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"U\+D800\) at character 2"):
        tokenizer.encode("ab\ud800")


@pytest.mark.parametrize("tokenizer", ALL)
@pytest.mark.parametrize("token_id", [-1, 10**6])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, token_id: int) -> None:
    with pytest.raises(RequestError, match=str(token_id)):
        tokenizer.token_bytes(token_id)
    with pytest.raises(RequestError, match=str(token_id)):
        tokenizer.decode([token_id])
