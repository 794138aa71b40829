"""The items of a run: which there are, in which order, and their prompts."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ellm.quality.interfaces import PromptTokenizer
from ellm.quality.plan import QualityPlan
from ellm.quality.prompts import prompt_tokens
from ellm.quality.tasks.filling import Prompt, fill
from ellm.quality.tasks.haystack import Haystack
from ellm.quality.tasks.registry import TASKS
from ellm.quality.tasks.task import Setting

# Steps of the golden ratio fill 0..1 evenly at any number of samples.
_GOLDEN_STEP = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class ItemKey:
    """One item of a run."""

    task: str
    length_tokens: int
    index: int

    def __str__(self) -> str:
        """Return what progress calls it."""
        return f"{self.task} at {self.length_tokens:,} tokens, sample {self.index + 1}"


def item_keys(plan: QualityPlan) -> Iterator[ItemKey]:
    """Yield all items, sample by sample: whatever is done when it is stopped covers all tasks."""
    for index in range(plan.samples):
        for task in plan.tasks:
            for length in plan.lengths_tokens:
                yield ItemKey(task, length, index)


def make_prompt(
    key: ItemKey, seed: int, haystacks: Sequence[Haystack], tokenizer: PromptTokenizer
) -> Prompt:
    """Return the prompt of an item, the same one every time.

    Its tokens are at most the item's length, and 95 % of it where the haystack has lines of usual
    length.

    Raises:
        ConfigError: The length is too short for the task.
    """
    task = TASKS[key.task]
    setting = Setting(
        key=f"{seed}/{key.task}/{key.length_tokens}/{key.index}",
        length_tokens=key.length_tokens,
        position=_position(seed, key.task, key.index),
        haystack=haystacks[key.index % len(haystacks)],
    )

    def made(size: int) -> Prompt:
        item = task.make(setting, size)
        return Prompt(item, prompt_tokens(tokenizer, item))

    return fill(made, key.length_tokens, unit_tokens=task.unit_tokens, name=task.name)


def check_lengths(
    plan: QualityPlan, haystacks: Sequence[Haystack], tokenizer: PromptTokenizer
) -> None:
    """Check that each task has room in the least length.

    Raises:
        ConfigError: One has not; the message names both numbers.
    """
    for task in plan.tasks:
        make_prompt(ItemKey(task, plan.lengths_tokens[0], 0), plan.seed, haystacks, tokenizer)


def _position(seed: int, task: str, index: int) -> float:
    """Return where a needle shall be: the same place at all lengths, another for each task."""
    first = zlib.crc32(f"{seed}/{task}".encode()) / 2**32
    return (first + index * _GOLDEN_STEP) % 1.0
