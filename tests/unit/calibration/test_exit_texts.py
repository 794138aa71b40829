"""The pieces of a probe: what an exit is fitted to is not what it is checked on."""

from __future__ import annotations

import pytest

from ellm.calibration.exit_texts import blocks_of_prompts, probe_texts
from ellm.errors import ConfigError
from ellm.quality.texts import Text, default_haystacks
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.word_tokenizer import WordTokenizer


def words(name: str, count: int) -> Text:
    return Text(name, "\n".join(f"{name}{number}x" for number in range(count)))


def test_pieces_to_learn_from_and_to_check_on_have_nothing_in_common() -> None:
    tokenizer = WordTokenizer()
    texts = [words("apple", 4000), words("pear", 4000)]
    found = probe_texts(tokenizer, texts)
    learnt = "".join(tokenizer.decode(piece.tolist()) for piece in found.learning)
    held_out = [tokenizer.decode(piece.tolist()) for piece in (*found.choosing, *found.prompts)]
    numbers = {word for word in learnt.split() if word.endswith("x")}
    for piece in held_out:
        # The first and the last word may be cut.
        assert numbers.isdisjoint(piece.split()[1:-1])
    for one in held_out:
        assert sum(one in other for other in held_out) == 1


def test_pieces_come_from_all_texts_in_turn() -> None:
    tokenizer = WordTokenizer()
    found = probe_texts(tokenizer, [words("apple", 900), words("pear", 4000)])
    names = ["pear" in tokenizer.decode(piece.tolist()) for piece in found.learning]
    apples = names.count(False)
    assert apples >= 2
    assert names[: 2 * apples] == [False, True] * apples
    assert all(names[2 * apples :])
    assert {piece.size for piece in found.learning} == {512}
    assert [piece.size for piece in found.choosing] == [512, 512]
    assert [piece.size for piece in found.prompts] == [128] * 8
    assert {str(piece.dtype) for piece in (*found.learning, *found.prompts)} == {"int32"}


def test_a_text_that_is_just_long_enough_is_used() -> None:
    found = probe_texts(byte_tokenizer(), [Text("short", "x" * 2 * 640)])
    sizes = [len(pieces) for pieces in (found.learning, found.choosing, found.prompts)]
    assert sizes == [1, 1, 1]


@pytest.mark.parametrize("characters", [0, 100, 2 * 639])
def test_texts_that_are_too_short_are_refused(characters: int) -> None:
    with pytest.raises(ConfigError, match="too short to fit and check an exit: expected at least"):
        probe_texts(byte_tokenizer(), [Text("short", "x" * characters)])


def test_texts_of_this_machine_are_enough_for_a_minute() -> None:
    found = probe_texts(WordTokenizer(), default_haystacks())
    assert 512 * len(found.learning) > 30_000
    assert (len(found.choosing), len(found.prompts)) == (2, 8)


def test_prompts_have_blocks_of_their_own_as_far_as_there_are_any() -> None:
    blocks = blocks_of_prompts(25, 8, 64)
    assert [ids.tolist() for ids in blocks[:2]] == [[0, 1, 2], [3, 4, 5]]
    assert len(blocks) == 8
    assert len(blocks_of_prompts(8, 8, 64)) == 2
