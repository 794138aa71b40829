from __future__ import annotations

import pytest

from ellm.cli.documents import Document
from ellm.cli.prompts import plain_prompt, plan_context, question_prompt
from ellm.errors import CapacityError, ConfigError, RequestError

from .fakes import FakeTokenizer

DOCUMENTS = [Document("a.txt", "alpha\n"), Document("b.txt", "beta")]


def test_documents_come_first_and_the_question_last() -> None:
    tokenizer = FakeTokenizer()
    ids = question_prompt(tokenizer, DOCUMENTS, "Why?", system="Be brief.", context_length=100)
    (text,) = tokenizer.encoded
    assert text == (
        "<system> Be brief. <user> === a.txt ===\nalpha\n\n=== b.txt ===\nbeta\n\n"
        "Use the documents above to answer this question: Why?"
    )
    assert (ids[:2], ids[-2:]) == ([2, 3], [4, 5])


def test_two_questions_share_everything_before_the_question() -> None:
    texts = []
    for question in ("Why?", "When?"):
        tokenizer = FakeTokenizer()
        question_prompt(tokenizer, DOCUMENTS, question, context_length=100)
        texts.append(tokenizer.encoded[0])
    assert texts[0].removesuffix("Why?") == texts[1].removesuffix("When?")


def test_a_base_model_gets_a_plain_prompt_with_its_bos() -> None:
    tokenizer = FakeTokenizer(has_chat_template=False, add_bos=True)
    ids = question_prompt(tokenizer, DOCUMENTS, "Why?", context_length=100)
    assert tokenizer.encoded == [
        "=== a.txt ===\nalpha\n\n=== b.txt ===\nbeta\n\nQuestion: Why?\nAnswer:"
    ]
    assert ids[0] == 1


def test_hopelessly_long_documents_are_refused_without_tokenizing_them_all() -> None:
    tokenizer = FakeTokenizer()
    documents = [Document("big", "word " * 400_000)]
    with pytest.raises(
        CapacityError, match=r"about 40\d,\d{3} tokens .* context of 1,000"
    ) as caught:
        question_prompt(tokenizer, documents, "?", context_length=1000)
    assert sum(map(len, tokenizer.encoded)) == 200_000
    assert caught.value.available == 1000


def test_long_text_of_few_tokens_is_counted_exactly() -> None:
    tokenizer = FakeTokenizer()
    documents = [Document("rule", "-" * 1_000_000)]
    assert len(question_prompt(tokenizer, documents, "?", context_length=100)) < 100


def test_a_plain_prompt_is_left_as_it_is() -> None:
    tokenizer = FakeTokenizer(add_bos=True)
    ids = plain_prompt(tokenizer, "once upon", chat=False, system=None, context_length=10)
    assert tokenizer.encoded == ["once upon"]
    assert ids[0] == 1


@pytest.mark.parametrize(("chat", "system"), [(True, None), (False, "s"), (True, "")])
def test_chat_needs_a_template(chat: bool, system: str | None) -> None:
    tokenizer = FakeTokenizer()
    plain_prompt(tokenizer, "hi", chat=chat, system=system, context_length=10)
    assert tokenizer.encoded[0].endswith("<user> hi")
    with pytest.raises(RequestError, match="chat template"):
        plain_prompt(
            FakeTokenizer(has_chat_template=False),
            "hi",
            chat=chat,
            system=system,
            context_length=10,
        )


@pytest.mark.parametrize(
    ("prompt", "context", "answer", "expected"),
    [
        (100, None, None, (150, 50, False)),
        (100, None, 7, (107, 7, False)),
        (980, None, None, (1000, 20, True)),
        (999, None, 1, (1000, 1, False)),
        (100, 200, None, (200, 50, False)),
        (190, 200, None, (200, 10, True)),
        (100, 1000, 900, (1000, 900, False)),
    ],
)
def test_the_context_is_as_large_as_needed(
    prompt: int, context: int | None, answer: int | None, expected: tuple[int, int, bool]
) -> None:
    plan = plan_context(
        prompt,
        context_length=1000,
        context_tokens=context,
        max_tokens=answer,
        default_max_tokens=50,
    )
    assert (plan.context_tokens, plan.max_tokens, plan.shortened) == expected


@pytest.mark.parametrize(
    ("prompt", "context", "answer", "message"),
    [
        (1000, None, None, r"1,000 tokens does not fit the context of 1,000 tokens: give fewer"),
        (5000, None, 10, r"5,000 tokens and an answer of 10 tokens .* 1,000 tokens: give fewer"),
        (990, None, 20, r"answer of 20 tokens .*: -n 10 is the most that is left"),
        (300, 200, None, r"300 tokens does not fit the context of 200 tokens: -c 301 makes room"),
        (150, 200, 60, r"-c 210 makes room \(this model allows 1,000\)"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_numbers_and_advice(
    prompt: int, context: int | None, answer: int | None, message: str
) -> None:
    with pytest.raises(CapacityError, match=message) as caught:
        plan_context(
            prompt,
            context_length=1000,
            context_tokens=context,
            max_tokens=answer,
            default_max_tokens=50,
        )
    assert caught.value.needed == prompt + (answer or 1)
    assert caught.value.available == (context or 1000)


def test_more_context_than_the_model_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="-c 1001 is more than this model's context of 1000"):
        plan_context(
            5,
            context_length=1000,
            context_tokens=1001,
            max_tokens=None,
            default_max_tokens=50,
        )
