from collections import Counter
from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ellm.kv.block_keys import chain_keys, root_key
from ellm.kv.block_pool import BlockPool
from ellm.kv.prefix_tree import PrefixTree

NUM_BLOCKS = 12
LETTERS = st.integers(0, 1)  # few, so that texts share beginnings
PATHS = st.tuples(st.integers(0, 1), st.lists(LETTERS, max_size=5)).map(lambda p: (p[0], *p[1]))
PICKS = st.integers(0, 99)
ROOTS = [root_key(bytes(32), fingerprint=b"model", salt=bytes([tenant])) for tenant in range(2)]


def tokens_of(path):
    """Return the tokens of (tenant, letter of the first block, letter of the second, ...)."""
    return np.repeat(np.array(path[1:], dtype=np.int32), 64)


def keys_of(path):
    return chain_keys(ROOTS[path[0]], tokens_of(path))


def beginnings(path):
    """Return the paths of a text's blocks from the first on."""
    return [path[: end + 1] for end in range(1, len(path))]


@dataclass(eq=False)
class Running:
    """A sequence: its text as far as it is known, its blocks, and how many of them are full."""

    path: tuple
    blocks: list
    full: int


class PrefixTreeMachine(RuleBasedStateMachine):
    """Sequences over one pool and tree, against dicts of what the tree should hold."""

    def __init__(self):
        super().__init__()
        self.freed = []
        self.pool = BlockPool(NUM_BLOCKS, on_free=lambda blocks: self.freed.extend(blocks.tolist()))
        self.tree = PrefixTree(self.pool)
        self.running = []
        self.content = {}  # block -> the path that was written to it last
        self.held = {}  # path -> block in the tree
        self.last_use = {}
        self.uses = 0
        self.hit = self.missed = 0

    @property
    def holders(self):
        blocks = [block for sequence in self.running for block in sequence.blocks]
        return Counter([*blocks, *self.held.values()])

    def touch(self, paths):
        self.uses += 1
        self.last_use.update(dict.fromkeys(paths, self.uses))

    def known(self, path, limit):
        found = []
        for beginning in beginnings(path)[:limit]:
            if beginning not in self.held:
                break
            found.append(beginning)
        return found

    def is_followed(self, path):
        return any(longer[: len(path)] == path and longer != path for longer in self.held)

    def match(self, path, limit):
        """Match and check; the caller holds the blocks that are returned."""
        expected = self.known(path, limit)
        found = self.tree.match(keys_of(path), tokens_of(path), limit).tolist()
        assert found == [self.held[beginning] for beginning in expected]
        assert [self.content[block] for block in found] == expected
        self.touch(expected)
        self.hit += 64 * len(expected)
        self.missed += 64 * (min(limit, len(path) - 1) - len(expected))
        return found

    def evict(self, count):
        expected, holders = [], self.holders
        while len(expected) < count:
            leaves = [
                path
                for path, block in self.held.items()
                if holders[block] == 1 and not self.is_followed(path)
            ]
            if not leaves:
                break
            oldest = min(leaves, key=self.last_use.__getitem__)
            expected.append(self.held.pop(oldest))
        self.freed.clear()
        assert self.tree.evict(count) == len(expected)
        assert self.freed == expected

    def chosen(self, pick):
        return self.running[pick % len(self.running)]

    def admit(self, path, answer_blocks, ends_full):
        """Return a sequence with blocks for all it may write, None if they cannot be had."""
        prompt_blocks = len(path) - 1
        # One token of the prompt is always run again: the last of a full block, or one behind it.
        limit = max(0, prompt_blocks - ends_full)
        blocks = self.match(path, limit)
        needed = prompt_blocks + 1 + answer_blocks - len(blocks)
        if needed > self.pool.num_free + self.tree.evictable():
            self.pool.release(blocks)
            return None
        sequence = Running(path, blocks, full=len(blocks))
        self.running.append(sequence)
        self.evict(max(0, needed - self.pool.num_free))
        sequence.blocks = blocks + self.pool.allocate(needed).tolist()
        return sequence

    def compute(self, sequence, letters):
        """Fill the next blocks: with the rest of the prompt, then with these letters."""
        for letter in letters:
            if sequence.full == len(sequence.blocks):
                return
            if sequence.full == len(sequence.path) - 1:
                sequence.path += (letter,)
            block = sequence.blocks[sequence.full]
            sequence.full += 1
            self.content[block] = sequence.path[: sequence.full + 1]

    def insert(self, sequence):
        """Insert and check; return the tree's blocks."""
        path = sequence.path[: sequence.full + 1]
        for beginning, block in zip(beginnings(path), sequence.blocks, strict=False):
            self.held.setdefault(beginning, block)
        self.touch(beginnings(path))
        found = self.tree.insert(keys_of(path), tokens_of(path), sequence.blocks).tolist()
        assert found == [self.held[beginning] for beginning in beginnings(path)]
        return found

    def finish(self, sequence):
        self.running.remove(sequence)
        self.pool.release(sequence.blocks)

    @rule(path=PATHS, answer_blocks=st.integers(0, 2), ends_full=st.booleans())
    def start(self, path, answer_blocks, ends_full):
        self.admit(path, answer_blocks, ends_full)

    @rule(
        path=PATHS,
        answer=st.lists(LETTERS, max_size=2),
        ends_full=st.booleans(),
        goes_on=st.booleans(),
    )
    def serve(self, path, answer, ends_full, goes_on):
        sequence = self.admit(path, len(answer), ends_full)
        if sequence is None:
            return
        self.compute(sequence, [*path[1 + sequence.full :], *answer])
        self.insert(sequence)
        if not goes_on:
            self.finish(sequence)

    @rule(path=PATHS, limit=st.integers(0, 5))
    def match_and_let_go(self, path, limit):
        self.pool.release(self.match(path, limit))

    @precondition(lambda self: self.running)
    @rule(pick=PICKS, letters=st.lists(LETTERS, min_size=1, max_size=5))
    def run_rows(self, pick, letters):
        self.compute(self.chosen(pick), letters)

    @precondition(lambda self: self.running)
    @rule(pick=PICKS, swap_duplicates=st.booleans())
    def insert_full_blocks(self, pick, swap_duplicates):
        sequence = self.chosen(pick)
        found = self.insert(sequence)
        if swap_duplicates:
            own = sequence.blocks[: sequence.full]
            self.pool.share(found)
            self.pool.release(own)
            sequence.blocks[: sequence.full] = found

    @precondition(lambda self: self.running)
    @rule(pick=PICKS)
    def end(self, pick):
        self.finish(self.chosen(pick))

    @precondition(lambda self: self.held)
    @rule(pick=PICKS, block=st.integers(0, 4), position=st.integers(0, 63))
    def other_tokens_under_known_keys_do_not_match(self, pick, block, position):
        path = sorted(self.held)[pick % len(self.held)]
        block %= len(path) - 1
        tokens = tokens_of(path)
        tokens[64 * block + position] += 1
        found = self.tree.match(keys_of(path), tokens, len(path))
        expected = beginnings(path)[:block]
        assert found.tolist() == [self.held[beginning] for beginning in expected]
        self.touch(expected)
        self.hit += 64 * block
        self.missed += 64 * (len(path) - 1 - block)
        self.pool.release(found)

    @rule(count=st.integers(0, 4))
    def evict_some(self, count):
        self.evict(count)

    @precondition(lambda self: len(self.held) > 4)  # or the tree would be empty most of the time
    @rule()
    def evict_all_that_is_evictable(self):
        evictable, free = self.tree.evictable(), self.pool.num_free
        self.evict(NUM_BLOCKS)
        assert len(self.freed) == evictable
        assert self.pool.num_free == free + evictable
        assert self.tree.evictable() == 0

    @invariant()
    def every_holder_is_counted(self):
        holders = self.holders
        assert [self.pool.holders(b) for b in range(NUM_BLOCKS)] == [
            holders[b] for b in range(NUM_BLOCKS)
        ]
        assert self.pool.num_free == NUM_BLOCKS - len(holders)

    @invariant()
    def no_block_is_shared_and_written(self):
        for sequence in self.running:
            for block in sequence.blocks[sequence.full :]:
                assert block not in self.held.values()
                assert self.pool.holders(block) == 1

    @invariant()
    def every_sequence_reads_its_own_text(self):
        for sequence in self.running:
            full = beginnings(sequence.path)[: sequence.full]
            assert [self.content[b] for b in sequence.blocks[: sequence.full]] == full

    @invariant()
    def evictable_is_what_no_running_sequence_needs(self):
        holders = self.holders
        needed = {
            beginning
            for path, block in self.held.items()
            if holders[block] > 1
            for beginning in beginnings(path)
        }
        assert self.tree.evictable() == len(self.held) - len(needed)

    @invariant()
    def figures_agree(self):
        figures = self.tree.figures
        assert figures.blocks == len(self.held)
        assert (figures.hit_tokens, figures.missed_tokens) == (self.hit, self.missed)

    def teardown(self):
        for sequence in list(self.running):
            self.finish(sequence)
        self.evict(NUM_BLOCKS)
        assert self.pool.num_free == NUM_BLOCKS


TestPrefixTree = PrefixTreeMachine.TestCase
TestPrefixTree.settings = settings(deadline=None)
