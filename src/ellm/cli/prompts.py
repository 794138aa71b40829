"""From documents and a question to the tokens of a prompt, and whether they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ellm.cli.documents import Document
from ellm.errors import CapacityError, ConfigError, RequestError
from ellm.units import count_of, format_count

BASE_MODEL_STOP = "\nQuestion:"
"""A base model that has answered goes on with the next question of its own."""

_SAMPLE_CHARACTERS = 200_000
# Text of more characters per token than this does not exist outside of made-up cases, so a prompt
# this many times too long is refused from a sample instead of being tokenized for minutes.
_CERTAINLY_TOO_LONG = 16


class PromptTokenizer(Protocol):
    """What this module needs of a tokenizer."""

    @property
    def has_chat_template(self) -> bool:
        """Whether the model takes messages."""

    @property
    def add_bos(self) -> bool:
        """Whether a plain prompt begins with a BOS token."""

    def encode(self, text: str, *, parse_special: bool = ..., add_bos: bool = ...) -> list[int]:
        """Return the tokens of plain text."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the tokens of a conversation."""


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """How much context a request gets.

    Attributes:
        context_tokens: Tokens of KV cache to make.
        max_tokens: Tokens to answer with at most.
        shortened: The answer got less than the default because the prompt is long.
    """

    context_tokens: int
    max_tokens: int
    shortened: bool


def document_text(documents: Sequence[Document]) -> str:
    """Join documents, each under its path.

    Documents come before the question everywhere: what was read of them can then be used again
    for the next question.
    """
    return "\n\n".join(f"=== {item.name} ===\n{item.text.strip()}" for item in documents)


def question_prompt(
    tokenizer: PromptTokenizer,
    documents: Sequence[Document],
    question: str,
    *,
    system: str | None = None,
    context_length: int,
) -> list[int]:
    """Return the tokens of a question about documents.

    Args:
        tokenizer: The model's; without a chat template a plain prompt is made.
        documents: What to read.
        question: What to answer.
        system: System message; put first where there is no chat template.
        context_length: Tokens the model reads at most.

    Raises:
        CapacityError: The documents are many times too long to be worth counting.
    """
    packed = document_text(documents)
    _refuse_hopeless(tokenizer, packed, context_length)
    if tokenizer.has_chat_template:
        content = f"{packed}\n\nUse the documents above to answer this question: {question}"
        return tokenizer.encode_chat(_messages(content, system))
    head = f"{system}\n\n" if system else ""
    text = f"{head}{packed}\n\nQuestion: {question}\nAnswer:"
    return tokenizer.encode(text, add_bos=tokenizer.add_bos)


def plain_prompt(
    tokenizer: PromptTokenizer, text: str, *, chat: bool, system: str | None, context_length: int
) -> list[int]:
    """Return the tokens of a prompt that is continued, or answered with `chat` or `system`.

    Raises:
        RequestError: A conversation is wanted and the model has no chat template.
        CapacityError: The text is many times too long to be worth counting.
    """
    _refuse_hopeless(tokenizer, text, context_length)
    if not chat and system is None:
        return tokenizer.encode(text, add_bos=tokenizer.add_bos)
    if not tokenizer.has_chat_template:
        raise RequestError("--chat and --system need a model with a chat template, this has none")
    return tokenizer.encode_chat(_messages(text, system))


def plan_context(
    prompt_tokens: int,
    *,
    context_length: int,
    context_tokens: int | None,
    max_tokens: int | None,
    default_max_tokens: int,
) -> ContextPlan:
    """Decide how much context to make and how long the answer may be.

    Args:
        prompt_tokens: Tokens of the prompt.
        context_length: Tokens the model was trained for.
        context_tokens: What `-c` asks for; None makes as much as needed.
        max_tokens: What `-n` asks for; None gives the default, or what is left.
        default_max_tokens: The default.

    Raises:
        ConfigError: `-c` is more than the model was trained for.
        CapacityError: Prompt and answer do not fit; the message names both numbers.
    """
    if context_tokens is not None and context_tokens > context_length:
        raise ConfigError(
            f"-c {context_tokens} is more than this model's context of {context_length} tokens"
        )
    limit = context_length if context_tokens is None else context_tokens
    left = limit - prompt_tokens
    if left < 1 or (max_tokens is not None and max_tokens > left):
        raise _does_not_fit(prompt_tokens, max_tokens, limit, context_length)
    answer = min(left, default_max_tokens) if max_tokens is None else max_tokens
    return ContextPlan(
        context_tokens=prompt_tokens + answer if context_tokens is None else context_tokens,
        max_tokens=answer,
        shortened=max_tokens is None and answer < default_max_tokens,
    )


def _does_not_fit(
    prompt_tokens: int, max_tokens: int | None, limit: int, context_length: int
) -> CapacityError:
    needed = prompt_tokens + (max_tokens or 1)
    answer = f" and an answer of {count_of(max_tokens, 'token')}" if max_tokens else ""
    what = f"the prompt of {count_of(prompt_tokens, 'token')}{answer}"
    if limit < context_length and needed <= context_length:
        advice = f"-c {needed} makes room (this model allows {format_count(context_length)})"
    elif prompt_tokens < limit:
        advice = f"-n {limit - prompt_tokens} is the most that is left"
    else:
        advice = "give fewer or shorter documents, or a model with a longer context"
    return CapacityError(
        f"{what} does not fit the context of {count_of(limit, 'token')}: {advice}",
        needed=needed,
        available=limit,
    )


def _messages(content: str, system: str | None) -> list[dict[str, str]]:
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": content}]


def _refuse_hopeless(tokenizer: PromptTokenizer, text: str, context_length: int) -> None:
    if len(text) <= max(_SAMPLE_CHARACTERS, context_length * _CERTAINLY_TOO_LONG):
        return
    sampled = len(tokenizer.encode(text[:_SAMPLE_CHARACTERS]))
    estimate = int(len(text) / _SAMPLE_CHARACTERS * sampled)
    if estimate < 2 * context_length:
        return
    raise CapacityError(
        f"the prompt has about {format_count(estimate)} tokens and does not fit this model's "
        f"context of {count_of(context_length, 'token')}: give fewer or shorter documents, or a "
        "model with a longer context",
        needed=estimate,
        available=context_length,
    )
