"""All tokens that end a turn are known as such."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ellm.tokenizers import Tokenizer
from tests.support.tiny_vocabularies import byte_level, sentencepiece

P = "tokenizer.ggml."


def ending_pieces(control: Sequence[str], user_defined: Sequence[str] = (), **ids: int) -> set[str]:
    metadata = byte_level(merges=[], control=control, user_defined=user_defined)
    metadata |= {f"{P}{role}_token_id": 256 + i for role, i in ids.items()}
    tokenizer = Tokenizer.from_gguf(metadata)
    return {tokenizer.token_bytes(i).decode() for i in tokenizer.eos_ids}


def test_eos_ends_a_turn() -> None:
    assert ending_pieces(["<a>", "<b>", "<c>"], eos=1) == {"<b>"}


@pytest.mark.parametrize("role", ["eot", "eom", "fim_pad", "fim_rep", "fim_sep"])
def test_ids_the_file_names_end_a_turn(role: str) -> None:
    assert ending_pieces(["<a>", "<b>", "<c>"], eos=0, **{role: 1}) == {"<a>", "<b>"}


@pytest.mark.parametrize(
    "piece", ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "</s>"]
)
def test_well_known_control_tokens_end_a_turn(piece: str) -> None:
    assert ending_pieces(["<a>", piece, "<c>"], eos=0) == {"<a>", piece}


def test_a_tag_of_the_same_text_that_is_no_control_token_does_not() -> None:
    assert ending_pieces(["<a>", "<c>"], user_defined=["</s>"], eos=0) == {"<a>"}


def test_end_separates_channels_where_there_are_return_and_call() -> None:
    control = ["<|return|>", "<|call|>", "<|end|>"]
    assert ending_pieces(control, eos=0) == {"<|return|>", "<|call|>"}


def test_sentencepiece_files_without_ids_have_the_usual_ones() -> None:
    metadata = sentencepiece()
    for role in ("bos", "eos", "unknown"):
        del metadata[f"{P}{role}_token_id"]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids) == (1, 2, {2})
