"""Finds the size at which a prompt is as long as it shall be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ellm.errors import ConfigError
from ellm.quality.tasks.task import Item
from ellm.units import format_count

LEAST_FILL = 0.95
_ENOUGH_FILL = 0.97
_AIM_FILL = 0.985
_MOST_TRIES = 16
_TRIES_BY_RULE_OF_THREE = 6
_LEAST_RATE = 0.25


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
    low = _Tried(0, len(best.tokens))
    if low.tokens > limit_tokens:
        raise ConfigError(
            f"{name} needs {format_count(low.tokens)} tokens with this model, more than a length "
            f"of {format_count(limit_tokens)}; give greater lengths or leave it out"
        )
    high: _Tried | None = None
    rate = float(unit_tokens)
    for attempt in range(_MOST_TRIES):
        if low.tokens >= limit_tokens * _ENOUGH_FILL or (high and high.size - low.size < 2):
            break
        halve = attempt >= _TRIES_BY_RULE_OF_THREE
        size = _next_size(low, high, limit_tokens * _AIM_FILL, rate, halve=halve)
        made = make(size)
        tried = _Tried(size, len(made.tokens))
        if tried.tokens > limit_tokens:
            high = tried
            continue
        rate = (tried.tokens - low.tokens) / (size - low.size)
        best, low = made, tried
    return best


class _Tried(NamedTuple):
    """A size and the tokens of its prompt."""

    size: int
    tokens: int


def _next_size(
    low: _Tried, high: _Tried | None, aim_tokens: float, rate: float, *, halve: bool
) -> int:
    """Return the size to try next: above `low`, below `high` if there is one."""
    if high is not None and halve:
        return (low.size + high.size) // 2
    if high is not None:
        rate = (high.tokens - low.tokens) / (high.size - low.size)
    # What does not grow is made larger by leaps, but not without end.
    size = low.size + max(1, int((aim_tokens - low.tokens) / max(rate, _LEAST_RATE)))
    return size if high is None else min(size, high.size - 1)
