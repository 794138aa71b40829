"""A chain of assignments, to be followed through a text."""

from __future__ import annotations

import itertools

from ellm.quality.tasks import words
from ellm.quality.tasks.haystack import insert
from ellm.quality.tasks.task import Item, Setting, Task

HOPS = 4


def make(setting: Setting, size: int) -> Item:
    """Return an item that asks for all variables that got one value, directly or not."""
    random = setting.random()
    variables = list(itertools.islice(words.letters(random, words.UPPER_CASE, 5), HOPS + 1))
    (value,) = words.numbers(random, 1, digits=5)
    lines = [f"VAR {variables[0]} = {value}"]
    lines += [f"VAR {b} = VAR {a}" for a, b in itertools.pairwise(variables)]
    positions = sorted(random.random() for _ in lines)
    filler = setting.haystack.take(setting.random(), size)
    text = "\n".join(insert(filler, list(zip(positions, lines, strict=True))))
    return Item(
        document=f"Follow the variables that are assigned in the following text.\n\n{text}",
        question=f"Which {len(variables)} variables have the value {value}, as it was assigned to "
        "them directly or through another variable in the text above? Answer with the names alone, "
        "separated by commas.",
        answer_prefix=f"The {len(variables)} variables with the value {value} are",
        expected=tuple(variables),
    )


TASK = Task(
    name="variable-tracking",
    summary="five variables of one chain of assignments",
    max_tokens=50,
    unit_tokens=14,
    has_position=False,
    make=make,
)
"""Source: RULER (arXiv:2404.06654), variable tracking with 1 chain of 4 hops."""
