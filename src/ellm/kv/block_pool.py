"""The pool of KV blocks: who holds which, counted by reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from ellm.errors import CapacityError
from ellm.program.executor import BLOCK_TOKENS

BlockIds = npt.NDArray[np.int32]


def blocks_for(tokens: int) -> int:
    """Return how many blocks hold `tokens` tokens."""
    return -(-tokens // BLOCK_TOKENS)


class BlockPool:
    """Hands out block ids 0..num_blocks-1; a block is free again when its last holder lets go.

    A call either does all it was asked or changes nothing.
    """

    def __init__(
        self, num_blocks: int, on_free: Callable[[BlockIds], None] = lambda _: None
    ) -> None:
        """Start with every block free; `on_free` is told which blocks nobody holds any more."""
        self._on_free = on_free
        self._holders = np.zeros(num_blocks, dtype=np.int32)
        # A stack: the block freed last is taken first, its memory is the likeliest to be cached.
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, free or held."""
        return len(self._holders)

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def holders(self, block: int) -> int:
        """Return how many hold `block`."""
        return int(self._holders[self._checked(block)])

    def allocate(self, count: int) -> BlockIds:
        """Return `count` free blocks as int32 (count,), each now held once.

        Raises:
            CapacityError: Fewer are free; none is taken.
        """
        if count < 0:
            raise ValueError(f"cannot allocate {count} blocks")
        if count > len(self._free):
            raise CapacityError(
                f"{count} KV blocks of {BLOCK_TOKENS} tokens are needed, "
                f"{len(self._free)} of {self.num_blocks} are free; "
                "end other requests or give more context_tokens",
                needed=count,
                available=len(self._free),
            )
        taken = np.array([self._free.pop() for _ in range(count)], dtype=np.int32)
        self._holders[taken] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> BlockIds:
        """Add a holder to each of `blocks`, which must be held already, and return them.

        Raises:
            ValueError: A block is free or not in the pool: a bug of the caller.
        """
        ids = [self._checked(block) for block in blocks]
        for block in ids:
            if not self._holders[block]:
                raise ValueError(f"block {block} is free and cannot be shared")
        for block in ids:
            self._holders[block] += 1
        return np.array(ids, dtype=np.int32)

    def release(self, blocks: Iterable[int]) -> None:
        """Take one holder from each of `blocks`; a block that is left by all is free.

        Raises:
            ValueError: A block would be released more often than it is held: a bug of the caller.
        """
        counts: dict[int, int] = {}
        for block in blocks:
            counts[self._checked(block)] = counts.get(int(block), 0) + 1
        for block, count in counts.items():
            if count > self._holders[block]:
                raise ValueError(
                    f"block {block} is held {self._holders[block]} times, released {count} times"
                )
        for block, count in counts.items():
            self._holders[block] -= count
        freed = [block for block in counts if not self._holders[block]]
        self._free += freed
        if freed:
            self._on_free(np.array(freed, dtype=np.int32))

    def _checked(self, block: int) -> int:
        if not 0 <= block < len(self._holders):
            raise ValueError(f"block {block} is not in 0..{len(self._holders) - 1}")
        return int(block)
