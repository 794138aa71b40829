"""Texts are cut into prompt and tail where they shall be; figures are those of their positions."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ellm.quality.divergence import Comparison
from ellm.quality.fidelity import (
    VALUE_DIGITS,
    WHOLE_TAIL,
    FidelityCell,
    Passage,
    figures,
    passages,
)
from ellm.quality.plan import REFERENCE, QualityPlan
from ellm.quality.texts import Text
from tests.support.byte_tokenizer import BOS, byte_tokenizer
from tests.support.word_tokenizer import WordTokenizer

LONG = Text("long", " ".join(f"w{number}x" for number in range(5_000)))
SHORT = Text("short", "one two three " * 380)


def keys(passage: Passage) -> tuple[str, int]:
    return passage.text, passage.length_tokens


def plan(*lengths: int, tail: int = 100) -> QualityPlan:
    return QualityPlan(lengths_tokens=lengths, tasks=(), tail_tokens=tail, candidates=(REFERENCE,))


def test_a_text_is_cut_at_a_multiple_of_64_and_the_tail_follows() -> None:
    tokenizer = WordTokenizer()
    (first, second, *_), notes = passages(tokenizer, [LONG], plan(1100, 2048))
    assert notes == []
    assert [len(found.prompt) for found in (first, second)] == [1088, 2048]
    assert [keys(found) for found in (first, second)] == [("long", 1100), ("long", 2048)]
    for found in (first, second):
        assert len(found.tail) == len(found.following) == 100
        assert list(found.following[:-1]) == list(found.tail[1:])
        whole = [*found.prompt, *found.tail, found.following[-1]]
        assert LONG.content.startswith(tokenizer.decode(whole))
        assert found.parts[WHOLE_TAIL].all()


def test_a_text_begins_with_bos_where_the_model_wants_it() -> None:
    found, _ = passages(byte_tokenizer(add_bos=True), [LONG], plan(1024))
    assert [passage.prompt[0] for passage in found] == [BOS, BOS]


def test_a_text_that_is_too_short_is_left_out_with_a_note() -> None:
    found, notes = passages(WordTokenizer(), [SHORT], plan(1024, 1100))
    assert [keys(passage) for passage in found] == [
        ("short", 1024),
        ("needles", 1024),
        ("needles", 1100),
    ]
    assert notes == ["short has 1,141 tokens, 1,100 and a tail of 100 need more: left out"]


@pytest.mark.parametrize("tokenizer", [WordTokenizer(), byte_tokenizer()], ids=["words", "bytes"])
@pytest.mark.parametrize("length", [1024, 4096])
def test_needles_fill_the_prompt_and_value_digits_are_marked(tokenizer, length: int) -> None:
    (found,), _ = passages(tokenizer, [], plan(length, tail=400))
    document = tokenizer.decode(found.prompt)
    values = dict(re.findall(r"^key-(\d+): value-(\d{4})$", document, re.M))
    questions = document.partition("\n\nQuestion: ")[2]
    assert len(tokenizer.encode(questions)) < 0.05 * length
    tail = tokenizer.decode([*found.tail, found.following[-1]])
    answers = re.findall(r"Answer: key-(\d+): value-(\d{4})", tail)
    assert len(answers) >= 3
    assert all(values[key] == value for key, value in answers)
    digits = [
        tokenizer.decode([token])
        for token, marked in zip(found.following, found.parts[VALUE_DIGITS], strict=True)
        if marked
    ]
    assert "".join(value for _, value in answers) in "".join(digits)
    assert len(digits) <= 4 * (len(answers) + 2)


def cell(arm: str, kl: list[float], same: list[bool], margin: list[float]) -> FidelityCell:
    count = len(kl)
    comparison = Comparison(np.array(kl), np.array(same), np.array(margin), np.full(count, 0.5))
    parts = {WHOLE_TAIL: np.ones(count, np.bool_), "half": np.arange(count) < count // 2}
    return FidelityCell(
        text="t",
        length_tokens=64,
        arm=arm,
        comparison=comparison,
        parts=parts,
        blocks_read=count,
        blocks_total=10,
        skipped_mass=count / 100,
    )


def test_figures_are_those_of_all_positions() -> None:
    one = cell("a", [0.0, 0.1, 0.2, 0.3], [True, True, True, False], [0.9, 0.5, 0.05, 0.2])
    two = cell("a", [0.4, 0.4], [True, False], [0.0, 0.0])
    found = figures([one, two])
    assert found is not None
    assert found.n == 6
    assert found.mean_kl == pytest.approx(1.4 / 6)
    assert found.p99_kl == pytest.approx(0.4)
    assert found.max_kl == 0.4
    assert found.same_top == pytest.approx(4 / 6)
    assert (found.sure, found.sure_same_top) == (3, pytest.approx(2 / 3))
    assert found.nll_change == 0.5
    assert found.blocks_read_share == 6 / 20
    assert found.skipped_mass == pytest.approx(0.03)
    assert found.same_top_interval.low < 4 / 6 < found.same_top_interval.high


def test_a_part_has_its_own_figures_and_one_that_is_not_there_none() -> None:
    one = cell("a", [0.0, 0.2, 9.0, 9.0], [True, True, False, False], [0.0, 0.0, 1.0, 1.0])
    found = figures([one], "half")
    assert found is not None
    assert (found.n, found.mean_kl, found.same_top) == (2, 0.1, 1.0)
    assert (found.sure, found.sure_same_top) == (0, 1.0)
    assert figures([one], "absent") is None
    assert figures([]) is None
