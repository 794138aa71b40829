"""Plans are checked when they are made; prompts have the question last."""

from __future__ import annotations

from typing import Any

import pytest

from ellm.errors import ConfigError, RequestError
from ellm.quality.plan import REFERENCE, QualityPlan
from ellm.quality.prompts import prompt_tokens, require_same_tokens
from ellm.quality.tasks.task import Item
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.word_tokenizer import ASSISTANT, BOS, END, USER, WordTokenizer

GOOD: dict[str, Any] = {
    "lengths_tokens": (1024, 2048),
    "tasks": ("hex-copy",),
    "candidates": (REFERENCE,),
}
ITEM = Item(document="The sky is blue.", question="And?", answer_prefix="It is", expected=("blue",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths_tokens": ()}, "lengths_tokens is"),
        ({"lengths_tokens": (1023,)}, "an integer in 1024"),
        ({"lengths_tokens": (2048, 1024)}, "ascending"),
        ({"samples": 0}, "samples is 0"),
        ({"tail_tokens": 4097}, "tail_tokens is 4097"),
        ({"candidates": ()}, "at least one"),
        ({"candidates": (REFERENCE, REFERENCE)}, "each once"),
        ({"tasks": (), "fidelity": False}, "at least one task"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QualityPlan(**(GOOD | changes))


def test_the_context_holds_the_greatest_length_and_what_follows() -> None:
    assert QualityPlan(**GOOD).context_tokens == 2048 + 192
    assert QualityPlan(**GOOD, tail_tokens=10).context_tokens == 2048 + 60
    assert QualityPlan(**GOOD, fidelity=False).context_tokens == 2048 + 60
    assert QualityPlan(**(GOOD | {"tasks": ()}), tail_tokens=10).context_tokens == 2048 + 10


def test_a_prompt_is_a_conversation_whose_answer_has_begun() -> None:
    tokenizer = WordTokenizer()
    tokens = prompt_tokens(tokenizer, ITEM)
    assert tokens[:2] == [BOS, USER]
    end = tokens.index(END)
    assert tokenizer.decode(tokens[2:end]) == "The sky is blue.\n\nAnd?"
    assert tokens[end + 1] == ASSISTANT
    assert tokenizer.decode(tokens[end + 2 :]) == "It is"


@pytest.mark.parametrize("add_bos", [False, True])
def test_a_prompt_for_a_model_without_chat_template_is_plain(add_bos: bool) -> None:
    tokenizer = WordTokenizer(has_chat_template=False, add_bos=add_bos)
    text = tokenizer.decode(prompt_tokens(tokenizer, ITEM))
    expected = "The sky is blue.\n\nQuestion: And?\nAnswer: It is"
    assert text == ("<s>" if add_bos else "") + expected


def test_models_of_other_tokens_are_not_compared() -> None:
    same = WordTokenizer()
    require_same_tokens(same, WordTokenizer())
    with pytest.raises(RequestError, match=r"50000 tokens, the candidate 258: .*same vocabulary"):
        require_same_tokens(same, byte_tokenizer())
    other = WordTokenizer()
    other.encode("words that come first and take the first numbers")
    with pytest.raises(RequestError, match="spell the same text with other tokens"):
        require_same_tokens(same, other)
