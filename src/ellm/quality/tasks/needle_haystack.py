"""One line of a document that is made of nothing but needles."""

from __future__ import annotations

from ellm.quality.tasks import words
from ellm.quality.tasks.task import Item, Setting, Task

_FOUR_DIGITS_HOLD = 10_000


def make(setting: Setting, size: int) -> Item:
    """Return an item that asks for the value of one of `size` + 1 keys."""
    lines, keys = needle_lines(setting, size + 1)
    asked = min(int(setting.position * len(lines)), size)
    return Item(
        document="The following lines each give a key its value.\n\n" + "\n".join(lines),
        question=f"What is the value of {keys[asked]} in the lines above?",
        answer_prefix=f"{keys[asked]}: value-",
        expected=(lines[asked].rpartition("-")[2],),
        needle=lines[asked],
    )


def needle_lines(setting: Setting, count: int) -> tuple[list[str], list[str]]:
    """Return so many lines like "key-0417: value-9921", all keys different, and the keys."""
    random = setting.random()
    digits = 4 if count <= _FOUR_DIGITS_HOLD else len(str(count - 1))
    keys = [f"key-{number}" for number in words.padded_numbers(random, count, digits)]
    values = [f"{random.randrange(10_000):04}" for _ in keys]
    return [f"{key}: value-{value}" for key, value in zip(keys, values, strict=True)], keys


TASK = Task(
    name="needle-haystack",
    summary="one line of a document of `key-dddd: value-dddd` lines",
    max_tokens=12,
    unit_tokens=14,
    has_position=True,
    make=make,
)
"""Source: RULER (arXiv:2404.06654), niah_multikey_2, with numbers in place of words."""
