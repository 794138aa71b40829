"""The words that are most frequent in a text of made-up words."""

from __future__ import annotations

import itertools
import math

from ellm.quality.tasks import words
from ellm.quality.tasks.task import Item, Setting, Task

ALPHA = 2.0
ASKED = 3
_NOISE = "...."
_ZETA_2 = math.pi**2 / 6
_LEAST_WORDS = 60  # with fewer, the asked words are not more frequent than others


def make(setting: Setting, size: int) -> Item:
    """Return an item that asks for the three most frequent words of about `size` + 60.

    The k-th word is there in proportion to k**-2; the first is noise.
    """
    random = setting.random()
    total = size + _LEAST_WORDS
    counts = itertools.takewhile(
        lambda count: count > 0,
        (int(total * rank**-ALPHA / _ZETA_2) for rank in itertools.count(1)),
    )
    vocabulary = itertools.chain((_NOISE,), words.letters(random, words.LOWER_CASE, 6))
    kinds = list(zip(vocabulary, counts, strict=False))
    text = [word for word, count in kinds for _ in range(count)]
    random.shuffle(text)
    asked = tuple(word for word, _ in kinds[1 : 1 + ASKED])
    return Item(
        document="Some words of the following coded text are more frequent than others.\n\n"
        + " ".join(text),
        question=f"Which {ASKED} words are the most frequent in the coded text above? Leave "
        f"{_NOISE} out, and answer with the words alone, separated by commas.",
        answer_prefix=f"The {ASKED} most frequent words are:",
        expected=asked,
    )


TASK = Task(
    name="frequent-words",
    summary="the three most frequent words of a coded text",
    max_tokens=40,
    unit_tokens=2,
    has_position=False,
    make=make,
)
"""Source: RULER (arXiv:2404.06654), frequent words extraction with alpha 2.0."""
