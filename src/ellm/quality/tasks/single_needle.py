"""One note in a text."""

from __future__ import annotations

from ellm.quality.tasks import words
from ellm.quality.tasks.needles import hidden, needle
from ellm.quality.tasks.task import Item, Setting, Task


def make(setting: Setting, size: int) -> Item:
    """Return an item that asks for the one code in the text."""
    random = setting.random()
    (name,) = words.names(random, 1)
    (code,) = words.numbers(random, 1)
    line = needle(name, code)
    return Item(
        document=hidden(setting, size, [(setting.position, line)]),
        question=f"What is the access code of {name} in the text above?",
        answer_prefix=f"The access code of {name} is",
        expected=(code,),
        needle=line,
    )


TASK = Task(
    name="single-needle",
    summary="one note in a text",
    max_tokens=20,
    unit_tokens=14,
    has_position=True,
    make=make,
)
"""Source: RULER (arXiv:2404.06654), niah_single."""
