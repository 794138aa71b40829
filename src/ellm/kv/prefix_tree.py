"""The prefix tree: which full blocks of earlier sequences are in memory, found by their keys."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ellm.kv.block_keys import Tokens, full_blocks
from ellm.kv.block_pool import BlockIds, BlockPool
from ellm.program.executor import BLOCK_TOKENS


@dataclass(slots=True, eq=False)
class PrefixNode:
    """One full block in the tree; only the tree changes it.

    Attributes:
        key: From `chain_keys`.
        parent: The block before it, None for a sequence's first.
        tokens: Its tokens, int32 (64,).
        block: The block of the pool that holds their keys and values.
        children: Blocks in the tree that follow it.
        last_use: The call that matched or inserted it last, counted from 1.
        queued: Whether the tree's queue of leaves has an entry of it.
    """

    key: bytes
    parent: PrefixNode | None
    tokens: npt.NDArray[np.int32]
    block: int
    children: int = 0
    last_use: int = 0
    queued: bool = False


@dataclass(frozen=True, slots=True)
class PrefixFigures:
    """What the tree holds now, and what it was good for since it was made.

    Attributes:
        blocks: Blocks in the tree.
        hit_tokens: Tokens that `match` was asked for and found.
        missed_tokens: Tokens that it was asked for and did not find.
        evicted_blocks: Blocks that `evict` dropped.
    """

    blocks: int
    hit_tokens: int
    missed_tokens: int
    evicted_blocks: int


class PrefixTree:
    """Full blocks under the keys of their chains; the tree is one holder of each.

    A block in the tree is never written again: only full blocks come in, so the open block stays
    with its sequence and nothing is copied on write. The caller inserts only blocks whose rows were
    all computed exactly; what is matched is then what reading the tokens again would give.

    Not safe for threads: the lock of the engine's core guards it together with its pool.
    """

    def __init__(self, pool: BlockPool) -> None:
        """Start empty over `pool`."""
        self._pool = pool
        self._nodes: dict[bytes, PrefixNode] = {}
        self._blocks: set[int] = set()
        # A heap of (last use, block, node) with at most one entry per node, made when it becomes a
        # leaf and mended only when popped: a use costs nothing, and nodes that became inner ones
        # are passed over. An ordered dict of leaves would not do, as an inner node that becomes a
        # leaf belongs where its last use was.
        self._leaves: list[tuple[int, int, PrefixNode]] = []
        self._uses = 0
        self._hit_tokens = 0
        self._missed_tokens = 0
        self._evicted_blocks = 0

    @property
    def figures(self) -> PrefixFigures:
        """What the tree holds and did."""
        return PrefixFigures(
            blocks=len(self._nodes),
            hit_tokens=self._hit_tokens,
            missed_tokens=self._missed_tokens,
            evicted_blocks=self._evicted_blocks,
        )

    def match(self, keys: Sequence[bytes], tokens: Tokens, limit_blocks: int) -> BlockIds:
        """Return the longest known beginning of a chain, int32 (n,); the caller now holds it too.

        Args:
            keys: Of the sequence's first full blocks, from `chain_keys`.
            tokens: Token ids, at least those of `keys`; compared, so a colliding key is a miss.
            limit_blocks: Most blocks to return; leaves a token to run for its logits.

        Raises:
            ValueError: The limit is negative, or there are fewer tokens than the keys stand for.
        """
        if limit_blocks < 0:
            raise ValueError(f"cannot match {limit_blocks} blocks")
        asked = keys[:limit_blocks]
        chain = self._walk(asked, _block_contents(asked, tokens))
        self._touch(chain)
        self._hit_tokens += BLOCK_TOKENS * len(chain)
        self._missed_tokens += BLOCK_TOKENS * (len(asked) - len(chain))
        return self._pool.share(node.block for node in chain)

    def insert(self, keys: Sequence[bytes], tokens: Tokens, blocks: Iterable[int]) -> BlockIds:
        """Add what is missing of a chain and return the tree's block for each key, int32 (n,).

        Nodes that are there stay: where the tree returns another block than it was given, the
        caller has a duplicate and may `share` the tree's and release its own. Fewer blocks than
        keys come back where a key belongs to other tokens or another parent: nothing is put under
        or in place of a foreign node. A call either does all of this or changes nothing.

        Args:
            keys: Of a sequence's first full blocks, whose rows were all computed exactly.
            tokens: Its token ids, at least those of `keys`.
            blocks: Its blocks in order, at least one per key; the caller holds them.

        Raises:
            ValueError: Tokens or blocks are too few; a block is free, given twice or already in
                the tree under another key: a bug of the caller.
        """
        contents = _block_contents(keys, tokens)
        given = [int(block) for block in blocks][: len(keys)]
        if len(given) < len(keys):
            raise ValueError(f"{len(given)} blocks were given for {len(keys)} keys")
        chain = self._walk(keys, contents)
        end = self._end_of_unknown(keys, len(chain))
        added = self._share_unknown(given[len(chain) : end])
        for index, block in enumerate(added, start=len(chain)):
            parent = chain[-1] if chain else None
            chain.append(self._add(keys[index], parent, contents[index], block))
        self._touch(chain)
        if added:
            self._queue(chain[-1])
        return np.array([node.block for node in chain], dtype=np.int32)

    def evictable(self) -> int:
        """Return exactly how many blocks `evict` could free now.

        Looks at every node, about 1 ms per 1,000: sequences let go of blocks without a word to
        the tree, and asking once per admission is cheaper than making every release tell it. Ask
        only when the pool's free blocks do not suffice.
        """
        kept: set[PrefixNode] = set()
        for held in self._nodes.values():
            if self._pool.holders(held.block) == 1:
                continue
            node: PrefixNode | None = held
            # A sequence that kept its duplicate of a parent may hold the child alone.
            while node is not None and node not in kept:
                kept.add(node)
                node = node.parent
        return len(self._nodes) - len(kept)

    def evict(self, count: int) -> int:
        """Free `count` blocks, or as many as possible, and return how many.

        The leaf used longest ago that no sequence holds goes first; its parent may be the next.

        Raises:
            ValueError: The count is negative.
        """
        if count < 0:
            raise ValueError(f"cannot evict {count} blocks")
        freed: list[int] = []
        kept: list[PrefixNode] = []
        while len(freed) < count and (leaf := self._pop_leaf()) is not None:
            if self._pool.holders(leaf.block) > 1:
                kept.append(leaf)
                continue
            self._remove(leaf)
            freed.append(leaf.block)
        # Not while looking: a held leaf would be popped over and over.
        for leaf in kept:
            self._queue(leaf)
        self._evicted_blocks += len(freed)
        self._pool.release(freed)
        return len(freed)

    def _walk(self, keys: Sequence[bytes], contents: Sequence[bytes]) -> list[PrefixNode]:
        """Return the nodes of the longest beginning of a chain that is in the tree."""
        chain: list[PrefixNode] = []
        parent: PrefixNode | None = None
        for key, content in zip(keys, contents, strict=True):
            node = self._nodes.get(key)
            if node is None or node.parent is not parent or node.tokens.tobytes() != content:
                break
            chain.append(node)
            parent = node
        return chain

    def _touch(self, chain: list[PrefixNode]) -> None:
        self._uses += 1
        for node in chain:
            node.last_use = self._uses

    def _end_of_unknown(self, keys: Sequence[bytes], start: int) -> int:
        """Return where from `start` on the first key comes that is taken."""
        seen: set[bytes] = set()
        for index in range(start, len(keys)):
            if keys[index] in self._nodes or keys[index] in seen:
                return index
            seen.add(keys[index])
        return len(keys)

    def _share_unknown(self, blocks: list[int]) -> list[int]:
        known = self._blocks.intersection(blocks)
        if known:
            raise ValueError(f"blocks {sorted(known)} are in the tree under other keys")
        if len(set(blocks)) < len(blocks):
            raise ValueError("a block was given for two keys")
        return [int(block) for block in self._pool.share(blocks)]

    def _add(self, key: bytes, parent: PrefixNode | None, content: bytes, block: int) -> PrefixNode:
        node = PrefixNode(key, parent, np.frombuffer(content, dtype="<i4"), block)
        if parent is not None:
            parent.children += 1
        self._nodes[key] = node
        self._blocks.add(block)
        return node

    def _remove(self, leaf: PrefixNode) -> None:
        """Take a node without children out; its block is still held, and to be released."""
        del self._nodes[leaf.key]
        self._blocks.remove(leaf.block)
        if leaf.parent is not None:
            leaf.parent.children -= 1
            self._queue(leaf.parent)

    def _queue(self, node: PrefixNode) -> None:
        if not node.children and not node.queued:
            node.queued = True
            heapq.heappush(self._leaves, (node.last_use, node.block, node))

    def _pop_leaf(self) -> PrefixNode | None:
        """Return the leaf used longest ago, no longer queued; None if no entry is left."""
        while self._leaves:
            last_use, _, node = heapq.heappop(self._leaves)
            node.queued = False
            if not node.children and node.last_use == last_use:
                return node
            self._queue(node)
        return None


def _block_contents(keys: Sequence[bytes], tokens: Tokens) -> list[bytes]:
    """Return the tokens of each key's block as bytes."""
    needed = BLOCK_TOKENS * len(keys)
    if len(tokens) < needed:
        raise ValueError(f"{len(keys)} keys stand for {needed} tokens, {len(tokens)} were given")
    return full_blocks(tokens[:needed])
