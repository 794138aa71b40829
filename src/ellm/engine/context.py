"""How many tokens of context there are: what the model, the caller and memory allow."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from ellm.errors import CapacityError, ConfigError
from ellm.kv.block_pool import blocks_for
from ellm.program.executor import BLOCK_TOKENS
from ellm.units import format_bytes

# Below this an engine for long texts is of no use, and the model is simply too large.
LEAST_CONTEXT_TOKENS = 512
# Of what is available, left to Python, the tokenizer, logits and everybody else.
KEPT_FREE_SHARE = 0.1

_LOGGER = logging.getLogger(__name__)


class Plan(Protocol):
    """Bytes a model will take with some number of KV blocks; `memory.MemoryPlan` is one."""

    @property
    def weights_bytes(self) -> int:
        """Weights as the executor holds them."""

    @property
    def arena_bytes(self) -> int:
        """Slots of the largest step."""

    @property
    def kv_bytes(self) -> int:
        """All KV blocks."""

    @property
    def total_bytes(self) -> int:
        """Everything together."""


def choose_context(
    asked: int | None,
    *,
    context_length: int,
    available_bytes: int,
    kv_type: str,
    plan: Callable[[int], Plan],
) -> int:
    """Return the context in tokens: what was asked for, or the most that model and memory allow.

    Args:
        asked: Tokens asked for, or None.
        context_length: Tokens the model was trained for.
        available_bytes: Memory there is.
        kv_type: How keys and values are stored; messages advise int8 where it is not.
        plan: Returns the bytes for a number of KV blocks; never less for more blocks.

    Raises:
        ConfigError: More than the model's context is asked for.
        CapacityError: The context does not fit in memory.
    """
    if asked is not None:
        if asked > context_length:
            raise ConfigError(
                f"context_tokens is {asked}; allowed is at most {context_length}, "
                "the context this model was trained for"
            )
        _require(plan(blocks_for(asked)), available_bytes, asked, kv_type)
        return asked
    budget = int(available_bytes * (1 - KEPT_FREE_SHARE))
    if plan(blocks_for(context_length)).total_bytes <= budget:
        return context_length
    least = min(LEAST_CONTEXT_TOKENS, context_length)
    _require(plan(blocks_for(least)), available_bytes, least, kv_type)
    fits = _most_blocks(blocks_for(least), blocks_for(context_length), budget, plan)
    tokens = max(least, min(context_length, fits * BLOCK_TOKENS))
    _LOGGER.warning(
        "context lowered from %d to %d tokens: %s of memory are available%s",
        context_length,
        tokens,
        format_bytes(available_bytes),
        "" if kv_type == "int8" else "; kv_type='int8' takes fewer bytes per token",
    )
    return tokens


def _most_blocks(fits: int, too_many: int, budget: int, plan: Callable[[int], Plan]) -> int:
    """Return the most blocks within `budget`, at least `fits`, fewer than `too_many`."""
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if plan(middle).total_bytes <= budget:
            fits = middle
        else:
            too_many = middle
    return fits


def _require(plan: Plan, available_bytes: int, context_tokens: int, kv_type: str) -> None:
    if plan.total_bytes <= available_bytes:
        return
    smaller = "" if kv_type == "int8" else ", kv_type='int8'"
    raise CapacityError(
        f"the model needs {plan.total_bytes} bytes ({format_bytes(plan.total_bytes)}: "
        f"weights {format_bytes(plan.weights_bytes)}, KV of {context_tokens} tokens "
        f"{format_bytes(plan.kv_bytes)}, working memory {format_bytes(plan.arena_bytes)}), "
        f"{available_bytes} bytes ({format_bytes(available_bytes)}) are available; "
        f"give fewer context_tokens{smaller} or a smaller model",
        needed=plan.total_bytes,
        available=available_bytes,
    )
