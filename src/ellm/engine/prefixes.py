"""What of a prompt need not be read again: full blocks kept in memory and on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ellm.engine.sequence import Sequence as TokenSequence
from ellm.kv.block_keys import chain_keys, root_key
from ellm.kv.block_pool import BlockPool
from ellm.kv.disk.disk_cache import DiskCache
from ellm.kv.prefix_tree import PrefixTree
from ellm.program.executor import BLOCK_TOKENS

# Blocks read from disk between two steps: a fraction of a second at most.
RESTORED_BLOCKS = 32


class BlockStore(Protocol):
    """An executor whose blocks can be copied; `NativeExecutor` is one."""

    @property
    def block_bytes(self) -> int:
        """Bytes of a full KV block."""

    def read_block(self, block: int) -> npt.NDArray[np.uint8]:
        """Return a full KV block as it is stored, uint8 (block_bytes,)."""

    def write_block(self, block: int, stored: npt.NDArray[np.uint8]) -> None:
        """Put a full KV block back."""


@dataclass(frozen=True, slots=True)
class PrefixConfig:
    """What names blocks, and where those go that outlive the process.

    Attributes:
        secret: 32 bytes that keys are made with.
        fingerprint: Of all that a block's bits depend on besides its tokens.
        disk: Where blocks are kept, if anywhere.
    """

    secret: bytes
    fingerprint: bytes
    disk: DiskCache | None = None

    def close(self) -> None:
        """Write what waits for the disk."""
        if self.disk is not None:
            self.disk.close()


class PrefixCache:
    """Shares full blocks between sequences; the lock of the engine's core guards it.

    Only blocks whose rows were all computed exactly are shared, so what is reused is what reading
    the tokens again would give, bit for bit: a prompt's blocks, and an answer's in mode "exact".
    The alternative, blocks marked with the mode of their rows, was rejected: an answer would then
    depend on which earlier answers are still cached.
    """

    def __init__(self, pool: BlockPool, store: BlockStore, config: PrefixConfig) -> None:
        """Share blocks of `pool`, which `store` holds."""
        self._pool = pool
        self._store = store
        self._config = config
        self._tree = PrefixTree(pool)
        self._roots: dict[str, bytes] = {}

    def used_bytes(self) -> tuple[int, int]:
        """Return the bytes of blocks that are in use or kept, in memory and on disk."""
        held = self._pool.num_blocks - self._pool.num_free
        disk = self._config.disk
        return held * self._store.block_bytes, 0 if disk is None else disk.bytes_used

    def begin(self, sequence: TokenSequence) -> None:
        """Name the blocks of a new sequence."""
        sequence.reuse.used_bytes = self.used_bytes
        sequence.reuse.root = self._root(sequence.cache_salt)
        sequence.reuse.keys = chain_keys(sequence.reuse.root, sequence.prompt)

    def match(self, sequence: TokenSequence) -> npt.NDArray[np.int32]:
        """Return the blocks in memory that the prompt begins with; the caller holds them, too."""
        return self._tree.match(sequence.reuse.keys, sequence.prompt, _limit(sequence))

    def on_disk(self, sequence: TokenSequence, matched: int) -> int:
        """Return how many blocks after the first `matched` can be restored from disk."""
        disk = self._config.disk
        if disk is None or matched >= _limit(sequence):
            return 0
        return disk.present(sequence.reuse.keys[matched : _limit(sequence)])

    def room(self, needed: int) -> bool:
        """Return whether `needed` blocks can be free, and see that they are."""
        missing = needed - self._pool.num_free
        if missing > 0 and self._tree.evictable() >= missing:
            self._tree.evict(missing)
        return needed <= self._pool.num_free

    def restore(self, sequence: TokenSequence) -> None:
        """Read some of the blocks that a sequence waits for from disk.

        A block that is gone or damaged ends it: the rest of the prompt is read as usual.
        """
        reuse, disk = sequence.reuse, self._config.disk
        stored = np.empty(self._store.block_bytes, dtype=np.uint8)
        for _ in range(min(reuse.to_restore, RESTORED_BLOCKS)):
            index = sequence.cached_tokens // BLOCK_TOKENS
            tokens = _block_tokens(sequence.prompt, index)
            if disk is None or not disk.read(reuse.keys[index], tokens, stored):
                reuse.to_restore = 0
                break
            self._store.write_block(int(sequence.blocks[index]), stored)
            sequence.cached_tokens += BLOCK_TOKENS
            reuse.disk_tokens += BLOCK_TOKENS
            reuse.to_restore -= 1
        if not reuse.to_restore:
            self._insert(sequence, sequence.cached_tokens // BLOCK_TOKENS)

    def keep(self, sequence: TokenSequence) -> None:
        """Share the blocks that a sequence has filled with exact rows since the last call."""
        full = min(sequence.cached_tokens, sequence.exact_tokens) // BLOCK_TOKENS
        first = sequence.reuse.kept_blocks
        if full <= first:
            return
        self._insert(sequence, full)
        disk = self._config.disk
        if disk is None:
            return
        keys = sequence.reuse.keys
        tokens = sequence.tokens(0, full * BLOCK_TOKENS)
        for index in range(first, full):
            parent = keys[index - 1] if index else None
            stored = self._store.read_block(int(sequence.blocks[index]))
            disk.put(keys[index], parent, _block_tokens(tokens, index), stored)

    def close(self) -> None:
        """Write what waits for the disk."""
        self._config.close()

    def _insert(self, sequence: TokenSequence, full: int) -> None:
        reuse = sequence.reuse
        tokens = sequence.tokens(0, full * BLOCK_TOKENS)
        if len(reuse.keys) < full:
            reuse.keys = chain_keys(reuse.root, tokens, already=reuse.keys)
        self._tree.insert(reuse.keys[:full], tokens, sequence.blocks[:full])
        reuse.kept_blocks = full

    def _root(self, salt: str) -> bytes:
        if salt not in self._roots:
            self._roots[salt] = root_key(
                self._config.secret, fingerprint=self._config.fingerprint, salt=salt.encode()
            )
        return self._roots[salt]


def _limit(sequence: TokenSequence) -> int:
    """Return the most blocks to reuse: the prompt's last token is run again for its logits."""
    return (len(sequence.prompt) - 1) // BLOCK_TOKENS


def _block_tokens(tokens: Sequence[int], index: int) -> npt.NDArray[np.int32]:
    return np.array(tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS], dtype=np.int32)
