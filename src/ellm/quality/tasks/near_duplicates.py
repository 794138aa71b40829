"""The one figure in which a copy of a document differs from the others."""

from __future__ import annotations

from ellm.quality.tasks import words
from ellm.quality.tasks.haystack import insert
from ellm.quality.tasks.task import Item, Setting, Task

COPIES = 6


def make(setting: Setting, size: int) -> Item:
    """Return an item that asks for the figure of one of six copies of `size` // 6 lines.

    The rest of `size` is the next line, once for each: so the document grows as evenly as if the
    copies got it one by one.
    """
    random = setting.random()
    holders = [noun.capitalize() for noun in random.sample(words.NOUNS, COPIES)]
    figures = words.numbers(random, COPIES, digits=3)
    place = random.random()
    *body, following = setting.haystack.take(setting.random(), size // COPIES + 1)
    annex = [following] * (size % COPIES)
    clauses = [f"The notice period is {figure} days." for figure in figures]
    parts = [
        "\n".join([f"=== Contract with {holder} ===", *insert(body, [(place, clause)])])
        for holder, clause in zip(holders, clauses, strict=True)
    ]
    asked = min(int(setting.position * COPIES), COPIES - 1)
    return Item(
        document="\n\n".join([*parts, "\n".join(["=== Annex ===", *annex])]),
        question=f"How many days is the notice period in the contract with {holders[asked]}?",
        answer_prefix=f"The notice period in the contract with {holders[asked]} is",
        expected=(figures[asked],),
        needle=clauses[asked],
    )


TASK = Task(
    name="near-duplicates",
    summary="the figure in which one of six copies of a document differs",
    max_tokens=12,
    unit_tokens=14,
    has_position=True,
    make=make,
)
"""Copies are what choosing blocks by their means fails on: see docs/quality.md."""
