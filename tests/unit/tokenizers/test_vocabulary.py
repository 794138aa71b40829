"""Hostile and inconsistent tokenizer metadata ends in one typed error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from ellm.errors import InvalidModelError, UnsupportedError
from ellm.tokenizers import Tokenizer
from ellm.tokenizers.vocabulary import MAX_PIECE_CHARS, MAX_TEMPLATE_BYTES, read_vocabulary
from tests.support.tiny_vocabularies import byte_level, sentencepiece

P = "tokenizer.ggml."
TOKENS = byte_level()[P + "tokens"]
assert isinstance(TOKENS, list)
COUNT = len(TOKENS)

BAD_BYTE_LEVEL: dict[str, tuple[str, object]] = {
    "no model": ("model", None),
    "model is a number": ("model", 3),
    "no tokens": ("tokens", None),
    "tokens are a string": ("tokens", "abc"),
    "tokens are bytes": ("tokens", b"abc"),
    "tokens are a number": ("tokens", 7),
    "tokens are numbers": ("tokens", [1, 2, 3]),
    "tokens are an array": ("tokens", np.arange(4)),
    "tokens are lists": ("tokens", [["a"], ["b"]]),
    "tokens are empty": ("tokens", []),
    "a token is bytes": ("tokens", [*TOKENS[:-1], b"x"]),
    "a token of 1 MB": ("tokens", [*TOKENS[:-1], "x" * (1 << 20)]),
    "a token twice": ("tokens", [*TOKENS[:-1], TOKENS[0]]),
    "a token with a surrogate": ("tokens", [*TOKENS[:-1], "\udc80"]),
    "too few types": ("token_type", [1] * (COUNT - 1)),
    "too many types": ("token_type", [1] * (COUNT + 1)),
    "type 7": ("token_type", [7] * COUNT),
    "type -1": ("token_type", [-1] * COUNT),
    "type 2^70": ("token_type", [2**70] * COUNT),
    "types are floats": ("token_type", [1.0] * COUNT),
    "types are booleans": ("token_type", [True] * COUNT),
    "types are strings": ("token_type", ["1"] * COUNT),
    "types are a string": ("token_type", "1" * COUNT),
    "types of several shapes": ("token_type", [[1], 2]),
    "types of two dimensions": ("token_type", np.ones((COUNT, 1), np.int32)),
    "types are one number": ("token_type", np.array(1)),
    "too few scores": ("scores", [0.0]),
    "scores are strings": ("scores", ["0"] * COUNT),
    "a score is NaN": ("scores", [math.nan] * COUNT),
    "no merges": ("merges", None),
    "merges are a string": ("merges", "h e"),
    "merges are numbers": ("merges", [1]),
    "a merge without a space": ("merges", ["he"]),
    "a merge without a left": ("merges", [" h"]),
    "a merge without a right": ("merges", ["h "]),
    "an empty merge": ("merges", [""]),
    "a merge of three": ("merges", ["h e l"]),
    "a merge of an unknown left": ("merges", ["zzz h"]),
    "a merge of an unknown right": ("merges", ["h zzz"]),
    "a merge into nothing": ("merges", ["h h"]),
    "a merge with a surrogate": ("merges", ["h \ud800"]),
    "bos is too large": ("bos_token_id", COUNT),
    "eos is negative": ("eos_token_id", -1),
    "eot is 2^32-1": ("eot_token_id", 2**32 - 1),
    "pad is a float": ("padding_token_id", 1.0),
    "eom is a string": ("eom_token_id", "1"),
    "unknown is a boolean": ("unknown_token_id", True),
    "an id is a list": ("fim_pad_token_id", [1]),
    "add_bos is a number": ("add_bos_token", 1),
    "add_bos is a string": ("add_bos_token", "true"),
    "add_space_prefix is a list": ("add_space_prefix", [True]),
    "pre is a number": ("pre", 1),
    "pre has a surrogate": ("pre", "\ud800"),
}
SP_TOKENS = sentencepiece()[P + "tokens"]
assert isinstance(SP_TOKENS, list)
SP_COUNT = len(SP_TOKENS)
BAD_SENTENCEPIECE: dict[str, tuple[str, object]] = {
    "no scores": ("scores", None),
    "a score is NaN": ("scores", [0.0] * (SP_COUNT - 1) + [math.nan]),
    "a score is infinite": ("scores", [0.0] * (SP_COUNT - 1) + [-math.inf]),
    "scores are complex": ("scores", np.zeros(SP_COUNT, np.complex128)),
    "a byte token of another text": ("token_type", [6] * SP_COUNT),
}


@pytest.mark.parametrize("case", BAD_BYTE_LEVEL)
def test_bad_byte_level_metadata_is_refused(case: str) -> None:
    assert_refused(byte_level(), *BAD_BYTE_LEVEL[case])


@pytest.mark.parametrize("case", BAD_SENTENCEPIECE)
def test_bad_sentencepiece_metadata_is_refused(case: str) -> None:
    assert_refused(sentencepiece(), *BAD_SENTENCEPIECE[case])


def assert_refused(metadata: dict[str, object], key: str, value: object) -> None:
    Tokenizer.from_gguf(metadata)
    metadata[P + key] = value
    if value is None:
        del metadata[P + key]
    start = time.monotonic()
    with pytest.raises(InvalidModelError) as caught:
        Tokenizer.from_gguf(metadata, path="model.gguf").prepare()
    assert time.monotonic() - start < 1
    assert caught.value.path == "model.gguf"
    assert caught.value.found
    assert caught.value.expected
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("value", [5, b"x", ["x"], "x" * (MAX_TEMPLATE_BYTES + 1), "\ud800"])
def test_bad_chat_templates_are_refused(value: object) -> None:
    with pytest.raises(InvalidModelError, match="chat_template"):
        Tokenizer.from_gguf(byte_level() | {"tokenizer.chat_template": value})


def test_a_vocabulary_of_too_many_characters_is_refused() -> None:
    tokens = [f"{i:0{MAX_PIECE_CHARS}}" for i in range(5000)]
    with pytest.raises(InvalidModelError, match="characters in all"):
        read_vocabulary(byte_level() | {P + "tokens": tokens}, "")


@pytest.mark.parametrize("kind", ["bert", "t5", "rwkv", "", "x" * 10**6])
def test_other_tokenizer_models_are_unsupported(kind: str) -> None:
    with pytest.raises(UnsupportedError, match="gpt2, llama") as caught:
        Tokenizer.from_gguf(byte_level() | {P + "model": kind})
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("make", [list, np.array, tuple])
def test_numbers_may_come_as_lists_or_arrays(make: Callable[[object], object]) -> None:
    metadata = sentencepiece()
    for key in ("token_type", "scores"):
        metadata[P + key] = make(metadata[P + key])
    metadata[P + "bos_token_id"] = np.uint32(1)
    metadata[P + "add_space_prefix"] = np.bool_(False)
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.bos_id == 1
    assert tokenizer.decode(tokenizer.encode(" ab", add_bos=True)) == " ab"


def test_types_and_scores_are_optional_for_byte_level() -> None:
    metadata = byte_level()
    del metadata[P + "token_type"]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.special_ids == frozenset()
    assert tokenizer.decode(tokenizer.encode("<s>hello", parse_special=True)) == "<s>hello"


def test_empty_tokens_are_kept_apart() -> None:
    metadata = byte_level()
    metadata[P + "tokens"] = [*TOKENS[:-2], "", ""]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.vocab_size == COUNT
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
