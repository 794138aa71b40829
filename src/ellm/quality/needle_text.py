"""A text of nothing but needles, then questions about them with their right answers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from random import Random

import numpy as np

from ellm.quality.divergence import Flags
from ellm.quality.interfaces import QualityTokenizer
from ellm.quality.tasks.filling import Prompt, fill
from ellm.quality.tasks.haystack import Haystack
from ellm.quality.tasks.needle_haystack import needle_lines
from ellm.quality.tasks.task import Item, Setting

_VALUE = re.compile(rb"value-([0-9]{4})")
_LINE_TOKENS = 14
_MOST_CHARACTERS_PER_TOKEN = 8
_INTRODUCTION = "The following lines each give a key its value.\n\n"


def needle_passage(
    tokenizer: QualityTokenizer, *, prompt_tokens: int, tail_tokens: int, variant: int = 0
) -> tuple[list[int], Flags]:
    """Return the tokens of prompt, tail and one more, and which of the tail precede value digits.

    The lines fill the prompt, so that all that follows are questions and answers: to predict a
    value's digits is to look its line up. The text of a variant is the same every time.

    Raises:
        ConfigError: The prompt has not even room for one line.
    """
    setting = Setting(
        key=f"needles/{prompt_tokens}" + (f"/{variant}" if variant else ""),
        length_tokens=prompt_tokens,
        position=0.0,
        haystack=Haystack("none", (".",)),
    )

    def made(size: int) -> Prompt:
        lines, _ = needle_lines(setting, size + 1)
        text = _INTRODUCTION + "\n".join(lines) + "\n"
        item = Item(document=text, question="", answer_prefix="", expected=())
        return Prompt(item, tokenizer.encode(text, add_bos=tokenizer.add_bos))

    document = fill(made, prompt_tokens, unit_tokens=_LINE_TOKENS, name="the text of needles")
    needed = prompt_tokens + tail_tokens + 1
    text = document.item.document
    for question in _questions(text.splitlines()[2:], setting.random()):
        text += question
        # Their tokens have about two characters.
        missing = needed - len(document.tokens)
        if len(text) - len(document.item.document) > _MOST_CHARACTERS_PER_TOKEN * missing:
            break
    tokens = tokenizer.encode(text, add_bos=tokenizer.add_bos)[:needed]
    return tokens, _precede_values(tokenizer, tokens, prompt_tokens)


def _questions(lines: list[str], random: Random) -> Iterator[str]:
    """Yield questions with their answers, each key once, then all again."""
    order = random.sample(lines, len(lines))
    for line in itertools.cycle(order):
        key, _, value = line.partition(": ")
        yield f"\nQuestion: What is the value of {key}?\nAnswer: {key}: {value}\n"


def _precede_values(tokenizer: QualityTokenizer, tokens: list[int], prompt_tokens: int) -> Flags:
    """Return for each token of the tail whether the next one holds digits of a value."""
    pieces = [tokenizer.token_bytes(token) for token in tokens[prompt_tokens:]]
    # The value may begin before the tail, so the bytes before it are looked at, too.
    before = b"".join(
        map(tokenizer.token_bytes, tokens[max(0, prompt_tokens - 16) : prompt_tokens])
    )
    ends = np.cumsum([len(before), *map(len, pieces)])
    is_digit = np.zeros(int(ends[-1]), dtype=np.bool_)
    for match in _VALUE.finditer(before + b"".join(pieces)):
        is_digit[match.start(1) : match.end(1)] = True
    holds = [bool(is_digit[start:end].any()) for start, end in itertools.pairwise(ends)]
    return np.array(holds[1:], dtype=np.bool_)
