"""Each pre-tokenizer cuts text as the model's own tokenizer does; unknown ones are refused."""

from __future__ import annotations

import pytest
from tokenizers import Regex, pre_tokenizers

from ellm.errors import UnsupportedError
from ellm.tokenizers import Tokenizer
from ellm.tokenizers.pretokenizers import PRE_TOKENIZERS, pre_tokenizer
from tests.support.tiny_vocabularies import byte_level

TEXT = "I'LL don't  pay $1234567 for x2\r\n\n  HTTPServer's caf\u00e9?!..."
GPT2_END = ["\r\n\n ", " HTTPServer", "'s", " caf\u00e9", "?!..."]
END = ["\r\n\n", " ", " HTTPServer", "'s", " caf\u00e9", "?!..."]
WORDS = [" don", "'t", " ", " pay", " $"]
TRIPLES = ["123", "456", "7"]
FOR_X2 = [" for", " x", "2"]

CUTS = {
    "gpt-2": ["I", "'", "LL", *WORDS, "1234567", *FOR_X2, *GPT2_END],
    "smollm": ["I", "'", "LL", *WORDS, *"1234567", *FOR_X2, *GPT2_END],
    "qwen2": ["I", "'LL", *WORDS, *"1234567", *FOR_X2, *END],
    "llama-bpe": ["I", "'LL", *WORDS, *TRIPLES, *FOR_X2, *END],
    "tekken": ["I", "'LL", *WORDS, *"1234567", *FOR_X2, *END],
    "deepseek-v3": ["I", "'LL", *WORDS, *TRIPLES, *FOR_X2, *END],
    "gpt-4o": [
        *("I'LL", " don't", " ", " pay", " $", *TRIPLES, *FOR_X2),
        *("\r\n\n", " ", " HTTPServer's", " caf\u00e9", "?!..."),
    ],
    "falcon": [
        *("I", "'", "LL", " don", "'", "t", " ", " pay", " ", "$", *TRIPLES, *FOR_X2),
        *("\r\n\n ", " HTTPServer", "'", "s", " caf\u00e9", "?!..."),
    ],
}


def cuts(name: str, text: str) -> list[str]:
    rules = PRE_TOKENIZERS[name]
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns]
    )
    return [piece for piece, _ in splitter.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", CUTS)
def test_text_is_cut_as_the_name_says(name: str) -> None:
    assert cuts(name, TEXT) == CUTS[name]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_no_rule_loses_a_character(name: str) -> None:
    text = TEXT + " \u65e5\u672c\u8a9e \u0663\u0664 e\u0301 \U0001f44d\U0001f3fd \u00a0\u3000 end "
    assert "".join(cuts(name, text)) == text
    tokenizer = Tokenizer.from_gguf(byte_level(pre=name))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_combining_marks_stay_with_letters_in_qwen35() -> None:
    assert cuts("qwen2", "e\u0301a") == ["e", "\u0301a"]
    assert cuts("qwen35", "e\u0301a") == ["e\u0301a"]


@pytest.mark.parametrize("name", ["", "qwen", "QWEN2", "x" * 10**6])
def test_unknown_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"llama-bpe.*qwen2.*smollm") as caught:
        pre_tokenizer(name, "model.gguf")
    assert "model.gguf" in str(caught.value)
    assert len(str(caught.value)) < 1000
    with pytest.raises(UnsupportedError):
        Tokenizer.from_gguf(byte_level(pre=name))


def test_a_missing_name_is_not_guessed() -> None:
    metadata = byte_level()
    del metadata["tokenizer.ggml.pre"]
    with pytest.raises(UnsupportedError, match=r"tokenizer\.ggml\.pre"):
        Tokenizer.from_gguf(metadata)
