"""The right one of several notes in a text."""

from __future__ import annotations

from ellm.quality.tasks import words
from ellm.quality.tasks.needles import hidden, needle
from ellm.quality.tasks.task import Item, Setting, Task

DISTRACTORS = 4


def make(setting: Setting, size: int) -> Item:
    """Return an item that asks for one of five codes, each of another name."""
    random = setting.random()
    name, *others = words.names(random, 1 + DISTRACTORS)
    code, *other_codes = words.numbers(random, 1 + DISTRACTORS)
    line = needle(name, code)
    distractors = [
        (random.random(), needle(*pair)) for pair in zip(others, other_codes, strict=True)
    ]
    return Item(
        document=hidden(setting, size, [(setting.position, line), *distractors]),
        question=f"What is the access code of {name} in the text above?",
        answer_prefix=f"The access code of {name} is",
        expected=(code,),
        needle=line,
    )


TASK = Task(
    name="multi-key",
    summary="one of five notes in a text",
    max_tokens=20,
    unit_tokens=14,
    has_position=True,
    make=make,
)
"""Source: RULER (arXiv:2404.06654), niah_multikey_1."""
