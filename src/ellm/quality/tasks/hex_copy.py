"""32 hex digits, to be copied from one line among many."""

from __future__ import annotations

from ellm.quality.tasks import words
from ellm.quality.tasks.task import Item, Setting, Task

DIGITS = 32
_PART = 8
_HEX = "0123456789abcdef"


def make(setting: Setting, size: int) -> Item:
    """Return an item that asks for the digits of one of `size` + 1 records."""
    random = setting.random()
    count = size + 1
    digits = max(4, len(str(count - 1)))
    records = words.padded_numbers(random, count, digits)
    hashes = ["".join(random.choices(_HEX, k=DIGITS)) for _ in records]
    lines = [f"record {record}: {text}" for record, text in zip(records, hashes, strict=True)]
    asked = min(int(setting.position * count), size)
    return Item(
        document=f"Each of the following records has {DIGITS} hex digits.\n\n" + "\n".join(lines),
        question=f"What are the {DIGITS} hex digits of record {records[asked]} above?",
        answer_prefix=f"record {records[asked]}:",
        # In parts, so that a copy that breaks late scores more than one that breaks early.
        expected=tuple(hashes[asked][at : at + _PART] for at in range(0, DIGITS, _PART)),
        needle=lines[asked],
    )


TASK = Task(
    name="hex-copy",
    summary="32 hex digits looked up among many lines",
    max_tokens=48,
    unit_tokens=35,
    has_position=True,
    make=make,
)
"""Source: InfiniteBench (arXiv:2402.13718), retrieval of key-value pairs: a copy breaks where the
blocks that are read change from token to token."""
