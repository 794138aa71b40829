from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from ellm.errors import CapacityError
from ellm.kv.block_pool import BlockPool, blocks_for

NUM_BLOCKS = 12


class BlockPoolMachine(RuleBasedStateMachine):
    """The pool against a bag of holds: every hold is one (block, holder) pair."""

    holds = Bundle("holds")

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.model = Counter()

    @rule(target=holds, count=st.integers(0, NUM_BLOCKS + 2))
    def allocate(self, count):
        free = NUM_BLOCKS - len(self.model)
        if count > free:
            with pytest.raises(CapacityError) as caught:
                self.pool.allocate(count)
            assert (caught.value.needed, caught.value.available) == (count, free)
            return np.empty(0, dtype=np.int32)
        ids = self.pool.allocate(count)
        assert ids.dtype == np.int32
        assert len(set(ids.tolist())) == len(ids) == count
        assert not set(ids.tolist()) & set(self.model)
        self.model.update(ids.tolist())
        return ids

    @rule(target=holds, ids=holds)
    def share(self, ids):
        shared = self.pool.share(ids)
        assert shared.tolist() == ids.tolist()
        self.model.update(ids.tolist())
        return shared

    @rule(ids=consumes(holds))
    def release(self, ids):
        self.pool.release(ids)
        self.model -= Counter(ids.tolist())

    @rule(ids=holds)
    def releasing_more_often_than_held_changes_nothing(self, ids):
        if not len(ids):
            return
        too_often = ids.tolist() * (self.model[ids[0].item()] + 1)
        with pytest.raises(ValueError, match="held"):
            self.pool.release(too_often)

    @rule()
    def sharing_a_free_block_is_refused_and_shares_none(self):
        free = [block for block in range(NUM_BLOCKS) if block not in self.model]
        if free:
            with pytest.raises(ValueError, match="is free"):
                self.pool.share([*self.model, free[0]])

    @rule(block=st.sampled_from([-1, NUM_BLOCKS, 10**6]))
    def unknown_blocks_are_refused(self, block):
        for call in (self.pool.release, self.pool.share):
            with pytest.raises(ValueError, match="not in"):
                call([block])

    @invariant()
    def counts_agree(self):
        assert self.pool.num_free == NUM_BLOCKS - len(self.model)
        for block in range(NUM_BLOCKS):
            assert self.pool.holders(block) == self.model.get(block, 0)


TestBlockPool = BlockPoolMachine.TestCase
TestBlockPool.settings = settings(deadline=None)


def test_failed_allocation_names_blocks_needed_and_free():
    pool = BlockPool(3)
    pool.allocate(2)
    with pytest.raises(CapacityError, match="2 KV blocks of 64 tokens are needed, 1 of 3 are free"):
        pool.allocate(2)


def test_negative_allocation_is_refused():
    with pytest.raises(ValueError, match="-1"):
        BlockPool(3).allocate(-1)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (64, 1), (65, 2), (8192, 128)])
def test_blocks_for_rounds_up(tokens, blocks):
    assert blocks_for(tokens) == blocks
