"""What is learnt from is not what is checked on."""

from __future__ import annotations

import pytest

from ellm.calibration import plan as plan_module
from ellm.calibration.plan import CalibrationPlan
from ellm.calibration.texts import calibration_texts
from ellm.config.bounds import MAX_TOKENS
from ellm.errors import ConfigError
from ellm.program import executor
from ellm.quality.texts import Text, default_haystacks
from tests.support.byte_tokenizer import BOS, byte_tokenizer
from tests.support.word_tokenizer import WordTokenizer

PLAN = CalibrationPlan(length_tokens=1024, tail_tokens=20)


def words(count: int) -> Text:
    return Text("words", "\n".join(f"word{number}x" for number in range(count)))


def test_blocks_are_as_long_as_the_executor_has_them() -> None:
    assert plan_module.BLOCK_TOKENS == executor.BLOCK_TOKENS


def test_halves_are_learnt_from_and_held_out() -> None:
    tokenizer = WordTokenizer()
    text = words(4000)
    found = calibration_texts(tokenizer, [text], PLAN)
    assert found.notes == ()
    assert [passage.text for passage in found.learning] == ["needles", "words"]
    assert [passage.text for passage in found.held_out] == ["needles", "words"]
    learnt, held_out = (
        tokenizer.decode([*passage.prompt, *passage.tail, passage.following[-1]])
        for passage in (found.learning[1], found.held_out[1])
    )
    assert text.content.startswith(learnt)
    half = text.content[len(text.content) // 2 :]
    assert half.partition("\n")[2].startswith(held_out)
    assert set(learnt.split()).isdisjoint(held_out.split())


def test_needles_that_are_held_out_are_others() -> None:
    tokenizer = byte_tokenizer()
    found = calibration_texts(tokenizer, [], PLAN)
    (learnt,), (held_out,) = found.learning, found.held_out
    lines = [
        {line for line in tokenizer.decode(p.prompt).splitlines() if line.startswith("key-")}
        for p in (learnt, held_out)
    ]
    assert all(len(each) > 20 for each in lines)
    assert len(lines[0] & lines[1]) <= 1
    again = calibration_texts(tokenizer, [], PLAN).held_out[0]
    assert (again.prompt, again.tail) == (held_out.prompt, held_out.tail)


def test_passages_have_the_plan_s_sizes_and_begin_as_the_model_wants_it() -> None:
    found = calibration_texts(byte_tokenizer(add_bos=True), [words(2000)], PLAN)
    for passage in (*found.learning, *found.held_out):
        assert (len(passage.prompt), len(passage.tail), len(passage.following)) == (1024, 20, 20)
        assert passage.prompt[0] == BOS
        assert list(passage.following[:-1]) == list(passage.tail[1:])


def test_a_text_of_one_line_has_halves_too() -> None:
    found = calibration_texts(byte_tokenizer(), [Text("line", "abcdefg " * 400)], PLAN)
    assert [passage.text for passage in found.held_out] == ["needles", "line"]


def test_a_text_that_is_too_short_to_be_held_out_in_part_is_learnt_from() -> None:
    # About six tokens a line.
    found = calibration_texts(WordTokenizer(), [words(250)], PLAN)
    assert [passage.text for passage in found.learning] == ["needles", "words"]
    assert [passage.text for passage in found.held_out] == ["needles"]
    assert found.notes == ("words is too short to be held out in part: learnt from as a whole",)


def test_a_text_that_is_too_short_at_all_is_left_out() -> None:
    found = calibration_texts(WordTokenizer(), [words(10)], PLAN)
    assert len(found.learning) == len(found.held_out) == 1
    (note,) = found.notes
    assert note.startswith("words has ")
    assert note.endswith("1,024 and a tail of 20 need more: left out")


def test_texts_of_this_machine_are_long_enough_for_the_default_length() -> None:
    found = calibration_texts(WordTokenizer(), default_haystacks(), CalibrationPlan())
    assert found.notes == ()
    assert len(found.learning) == len(found.held_out) == 3


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("length_tokens", [0, 960, 1025, 131_136, MAX_TOKENS, 1024.0, "1024", None]),
        ("tail_tokens", [0, 7, 513, 8.0, True]),
        ("max_kl", [0, -1, 10.1, float("nan"), float("inf"), "0.1", None]),
    ],
)
def test_plans_that_cannot_work_are_refused(field: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=field):
            CalibrationPlan(**{field: value})  # type: ignore[arg-type]
