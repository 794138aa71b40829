"""Finds the size at which a prompt is as long as it shall be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ellm.errors import ConfigError
from ellm.quality.tasks.task import Item
from ellm.units import format_count

LEAST_FILL = 0.95
_ENOUGH_FILL = 0.97
_AIM_FILL = 0.985
_MOST_TRIES = 16
_TRIES_BY_RULE_OF_THREE = 6


@dataclass(frozen=True, slots=True)
class Prompt:
    """An item and its tokens."""

    item: Item
    tokens: Sequence[int]


def fill(
    make: Callable[[int], Prompt], limit_tokens: int, *, unit_tokens: int, name: str
) -> Prompt:
    """Return the prompt of some size that has at most `limit_tokens`, and nearly as many.

    Sizes are guessed by the rule of three between the nearest sizes known, so that few texts have
    to be encoded; where tokens do not grow evenly, the gap is halved.

    Args:
        make: Returns the prompt of a size, from 0.
        limit_tokens: Tokens at most.
        unit_tokens: About how many tokens a unit of size adds.
        name: The task's, for the message.

    Raises:
        ConfigError: Even size 0 has more tokens.
    """
    best = make(0)
    low, low_tokens = 0, len(best.tokens)
    if low_tokens > limit_tokens:
        raise ConfigError(
            f"{name} needs {format_count(low_tokens)} tokens with this model, more than a length "
            f"of {format_count(limit_tokens)}; give greater lengths or leave it out"
        )
    high: int | None = None
    high_tokens = 0
    rate = float(unit_tokens)
    for attempt in range(_MOST_TRIES):
        missing = limit_tokens * _AIM_FILL - low_tokens
        if len(best.tokens) >= limit_tokens * _ENOUGH_FILL or (high is not None and high - low < 2):
            break
        if high is not None:
            rate = (high_tokens - low_tokens) / (high - low)
        size = low + max(1, int(missing / max(rate, 0.01)))
        if high is not None:
            halved = attempt >= _TRIES_BY_RULE_OF_THREE
            size = (low + high) // 2 if halved else min(max(size, low + 1), high - 1)
        made = make(size)
        tokens = len(made.tokens)
        if tokens > limit_tokens:
            high, high_tokens = size, tokens
        else:
            rate = max(tokens - low_tokens, 1) / (size - low)
            best, low, low_tokens = made, size, tokens
    return best
