"""What a task is: a maker of items, each a document, a question and what the answer must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ellm.quality.tasks.haystack import Haystack


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A question with a known answer.

    Attributes:
        document: What to read.
        question: What to answer.
        answer_prefix: How the answer begins; does not end with a space.
        expected: Strings that a right answer holds.
        needle: The line of the document that has the answer, if it is one line.
    """

    document: str
    question: str
    answer_prefix: str
    expected: tuple[str, ...]
    needle: str | None = None

    @property
    def position(self) -> float | None:
        """Where the needle is: 0 at the document's beginning, 1 at its end; None without one."""
        if self.needle is None:
            return None
        return self.document.index(self.needle) / max(1, len(self.document) - len(self.needle))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What an item depends on besides its size.

    Attributes:
        key: Seed, task, length and index: same key, same random choices.
        length_tokens: Tokens of the prompt at most.
        position: Where a needle shall be, 0..1.
        haystack: What is put around it.
    """

    key: str
    length_tokens: int
    position: float
    haystack: Haystack

    def random(self) -> Random:
        """Return the source of the item's choices, the same ones every time."""
        return Random(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A family of questions.

    Attributes:
        name: What users call it.
        summary: What it asks, in a few words.
        max_tokens: Tokens that an answer needs at most.
        unit_tokens: About how many tokens one unit of size is; only how fast the right size is
            found hangs on it.
        has_position: Whether its items have a needle at one place.
        make: Returns the item of a setting with so many units of filler, from 0; a larger size is
            a longer document.
    """

    name: str
    summary: str
    max_tokens: int
    unit_tokens: int
    has_position: bool
    make: Callable[[Setting, int], Item]


def score(answer: str, expected: tuple[str, ...]) -> float:
    """Return the share of the expected strings that an answer holds, in any case and order.

    Source: RULER (arXiv:2404.06654), `scripts/eval/synthetic/constants.py`, `string_match_all`.
    """
    found = answer.lower()
    return sum(text.lower() in found for text in expected) / len(expected)
