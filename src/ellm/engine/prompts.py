"""Prompts as callers give them, checked and turned into token ids before any work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ellm.errors import CapacityError, RequestError

Prompt = str | Sequence[int]


class PromptEncoder(Protocol):
    """The part of a tokenizer that prompts need."""

    @property
    def bos_id(self) -> int | None:
        """Token that begins a text, if the model has one."""

    @property
    def add_bos(self) -> bool:
        """Whether the model expects it."""

    def encode(self, text: str, *, parse_special: bool = False, add_bos: bool = False) -> list[int]:
        """Return the token ids of `text`."""


def is_single(prompt: object) -> bool:
    """Return whether `prompt` is one prompt (a string or token ids), not a list of them.

    Raises:
        RequestError: It is neither, or empty.
    """
    if isinstance(prompt, str):
        return True
    if isinstance(prompt, np.ndarray):
        return True
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise RequestError(
            f"a prompt is a {type(prompt).__name__}, expected a string, token ids or a list of them"
        )
    if not prompt:
        raise RequestError("the prompt is empty, expected at least one token")
    return not isinstance(prompt[0], str | Sequence | np.ndarray)


def encode_prompt(prompt: object, encoder: PromptEncoder, vocab_size: int) -> list[int]:
    """Return the token ids of one prompt; text may hold special tokens and gets the model's BOS.

    Raises:
        RequestError: The prompt is empty, or an id is not one of 0..V-1.
    """
    if isinstance(prompt, str):
        tokens = encoder.encode(prompt, parse_special=True, add_bos=encoder.add_bos)
        # A rendered template often starts with the BOS text already: one is enough.
        if encoder.add_bos and tokens[:2] == [encoder.bos_id] * 2:
            tokens = tokens[1:]
    else:
        tokens = token_ids(prompt, vocab_size)
    if not tokens:
        raise RequestError("the prompt is empty, expected at least one token")
    return tokens


def token_ids(found: object, vocab_size: int) -> list[int]:
    """Return `found` as a list of ints if it is a sequence of token ids.

    Raises:
        RequestError: It is something else, or an id is not one of 0..V-1.
    """
    if isinstance(found, np.ndarray):
        found = found.tolist() if found.ndim == 1 else None
    if not isinstance(found, Sequence) or isinstance(found, str | bytes):
        raise RequestError(f"token ids are a {type(found).__name__}, expected a sequence of ints")
    for token in found:
        if not isinstance(token, int | np.integer) or isinstance(token, bool):
            raise RequestError(f"token id {token!r:.80} is a {type(token).__name__}, expected int")
        if not 0 <= token < vocab_size:
            raise RequestError(f"token id {token} is outside the model's 0..{vocab_size - 1}")
    return [int(token) for token in found]


def check_fits(tokens: int, context_tokens: int, *, answer_tokens: int) -> None:
    """Check that a prompt and at least `answer_tokens` more fit the context.

    Raises:
        CapacityError: They do not; the message names both numbers.
    """
    if tokens + answer_tokens <= context_tokens:
        return
    room = " and leaves no room for an answer" if tokens <= context_tokens else ""
    raise CapacityError(
        f"the prompt has {tokens} tokens, the context {context_tokens}{room}; "
        "shorten the prompt or give more context_tokens",
        needed=tokens + answer_tokens,
        available=context_tokens,
    )
