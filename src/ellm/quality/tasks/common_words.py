"""The words that are most common in a list."""

from __future__ import annotations

from ellm.quality.tasks import words
from ellm.quality.tasks.task import Item, Setting, Task

COMMON = 10
# Times that a common word is there, and another; a short list has no room for RULER's 30 and 3.
_REPEATS, _OTHER_REPEATS = 30, 3
_SHORT_REPEATS, _SHORT_OTHER_REPEATS = 8, 1
_SHORT_TOKENS = 4096


def make(setting: Setting, size: int) -> Item:
    """Return an item that asks for the ten common words beside `size` others."""
    random = setting.random()
    short = setting.length_tokens < _SHORT_TOKENS
    repeats = _SHORT_REPEATS if short else _REPEATS
    other_repeats = _SHORT_OTHER_REPEATS if short else _OTHER_REPEATS
    supply = words.compounds(random)
    common, others = supply[:COMMON], supply[COMMON : COMMON + size]
    listed = common * repeats + others * other_repeats
    random.shuffle(listed)
    text = " ".join(f"{number}. {word}" for number, word in enumerate(listed, 1))
    return Item(
        document=f"In the following list of words some are there more often than others.\n\n{text}",
        question=f"Which {COMMON} words are the most common in the list above? Answer with "
        "the words alone, separated by commas.",
        answer_prefix=f"The {COMMON} most common words are:",
        expected=tuple(common),
    )


TASK = Task(
    name="common-words",
    summary="the ten words that are most common in a list",
    max_tokens=60,
    unit_tokens=21,
    has_position=False,
    make=make,
)
"""Source: RULER (arXiv:2404.06654), common words extraction (30 times against 3)."""
