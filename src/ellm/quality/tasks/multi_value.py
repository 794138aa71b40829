"""All notes about one name."""

from __future__ import annotations

from ellm.quality.tasks import words
from ellm.quality.tasks.needles import hidden, needle
from ellm.quality.tasks.task import Item, Setting, Task

VALUES = 4


def make(setting: Setting, size: int) -> Item:
    """Return an item that asks for all four codes of one name."""
    random = setting.random()
    (name,) = words.names(random, 1)
    codes = words.numbers(random, VALUES)
    notes = [(random.random(), needle(name, code)) for code in codes]
    return Item(
        document=hidden(setting, size, notes),
        question=f"What are all {VALUES} access codes of {name} in the text above? Answer with the "
        "codes alone, separated by commas.",
        answer_prefix=f"The {VALUES} access codes of {name} are",
        expected=tuple(codes),
    )


TASK = Task(
    name="multi-value",
    summary="four notes about one name, all asked for",
    max_tokens=56,
    unit_tokens=14,
    has_position=False,
    make=make,
)
"""Source: RULER (arXiv:2404.06654), niah_multivalue."""
