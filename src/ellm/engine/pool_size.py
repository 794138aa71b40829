"""How many KV blocks there are: what a context takes, and room to keep what was read before."""

from __future__ import annotations

from collections.abc import Callable

from ellm.engine.context import KEPT_FREE_SHARE, Plan
from ellm.errors import CapacityError
from ellm.kv.block_pool import blocks_for
from ellm.units import format_bytes

# Without a limit blocks are kept for so many full contexts, if half of what is left has room.
KEPT_CONTEXTS = 8


def choose_blocks(
    memory_gb: float | None,
    *,
    context_tokens: int,
    keep: bool,
    block_bytes: int,
    available_bytes: int,
    plan: Callable[[int], Plan],
) -> int:
    """Return the number of KV blocks, at least those of a context.

    Args:
        memory_gb: What blocks may take, in 1e9 bytes, if that was given.
        context_tokens: Tokens that must fit.
        keep: Whether to make room for more than a context.
        block_bytes: Bytes of a block.
        available_bytes: Memory there is.
        plan: Returns the bytes for a number of KV blocks; never less for more blocks.

    Raises:
        CapacityError: `memory_gb` is less than a context takes, or more than there is.
    """
    least = blocks_for(context_tokens)
    if memory_gb is None:
        if not keep:
            return least
        left = available_bytes * (1 - KEPT_FREE_SHARE) - plan(least).total_bytes
        more = max(0, int(left / 2)) // block_bytes
        return least + min(more, (KEPT_CONTEXTS - 1) * least)
    blocks = int(memory_gb * 1e9) // block_bytes
    if blocks < least:
        raise CapacityError(
            f"kv_cache_gb is {memory_gb:g}; {context_tokens} tokens take "
            f"{format_bytes(least * block_bytes)} of KV: give more, or fewer context_tokens",
            needed=least * block_bytes,
            available=int(memory_gb * 1e9),
        )
    needed = plan(blocks).total_bytes
    if needed > available_bytes:
        raise CapacityError(
            f"kv_cache_gb is {memory_gb:g}: with the weights that takes {needed} bytes "
            f"({format_bytes(needed)}), {available_bytes} ({format_bytes(available_bytes)}) are "
            "available",
            needed=needed,
            available=available_bytes,
        )
    return blocks
