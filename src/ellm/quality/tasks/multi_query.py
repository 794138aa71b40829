"""Several notes, all asked for at once."""

from __future__ import annotations

from ellm.quality.tasks import words
from ellm.quality.tasks.needles import hidden, needle
from ellm.quality.tasks.task import Item, Setting, Task

QUERIES = 4


def make(setting: Setting, size: int) -> Item:
    """Return an item that asks for the codes of four names."""
    random = setting.random()
    found = words.names(random, QUERIES)
    codes = words.numbers(random, QUERIES)
    notes = [(random.random(), needle(*pair)) for pair in zip(found, codes, strict=True)]
    asked = f"{', '.join(found[:-1])} and {found[-1]}"
    return Item(
        document=hidden(setting, size, notes),
        question=f"What are the access codes of {asked} in the text above? Answer with the "
        f"{QUERIES} codes alone, in this order, separated by commas.",
        answer_prefix=f"The access codes of {asked}, in this order, are",
        expected=tuple(codes),
    )


TASK = Task(
    name="multi-query",
    summary="notes about four names, all asked for",
    max_tokens=56,
    unit_tokens=14,
    has_position=False,
    make=make,
)
"""Source: RULER (arXiv:2404.06654), niah_multiquery."""
