import numpy as np
import pytest

from ellm.kv.block_keys import chain_keys, root_key
from ellm.kv.block_pool import BlockPool
from ellm.kv.prefix_tree import PrefixTree

ROOT = root_key(bytes(32), fingerprint=b"model", salt=b"tenant")


class Text:
    """A text of one letter per block, with the keys of its blocks."""

    def __init__(self, letters, root=ROOT):
        self.tokens = np.repeat([ord(letter) for letter in letters], 64).astype(np.int32)
        self.keys = chain_keys(root, self.tokens)


def remembered(tree, pool, letters, root=ROOT):
    """Put a text into the tree as a sequence does that ends then; return the tree's blocks."""
    text = Text(letters, root)
    held = pool.allocate(len(letters))
    blocks = tree.insert(text.keys, text.tokens, held)
    pool.letters.update(zip(blocks.tolist(), letters, strict=True))
    pool.release(held)
    return blocks.tolist()


def known(tree, pool, letters, root=ROOT):
    """Return how many blocks of a text match."""
    text = Text(letters, root)
    blocks = tree.match(text.keys, text.tokens, len(text.keys))
    pool.release(blocks)
    return len(blocks)


def evicted(tree, pool, count):
    """Evict and return the letters of the blocks that became free, in order."""
    pool.freed.clear()
    assert tree.evict(count) == len(pool.freed)
    return "".join(pool.letters[block] for block in pool.freed)


class Pool(BlockPool):
    """A pool that knows what `remembered` put into its blocks and what became free."""

    def __init__(self):
        super().__init__(16, on_free=lambda blocks: self.freed.extend(blocks.tolist()))
        self.freed = []
        self.letters = {}


@pytest.fixture
def pool():
    return Pool()


@pytest.fixture
def tree(pool):
    return PrefixTree(pool)


def test_a_match_is_the_longest_known_beginning(tree, pool):
    blocks = remembered(tree, pool, "abc")
    for letters, matched in (("abc", 3), ("abcd", 3), ("abx", 2), ("xbc", 0), ("a", 1), ("", 0)):
        text = Text(letters)
        found = tree.match(text.keys, text.tokens, len(letters))
        assert found.dtype == np.int32
        assert found.tolist() == blocks[:matched]
        pool.release(found)


def test_matched_blocks_are_held_for_the_caller(tree, pool):
    blocks = remembered(tree, pool, "ab")
    text = Text("abc")
    assert tree.match(text.keys, text.tokens, 3).tolist() == blocks
    assert [pool.holders(block) for block in blocks] == [2, 2]
    assert tree.evict(2) == 0


def test_no_more_blocks_match_than_the_caller_may_reuse(tree, pool):
    blocks = remembered(tree, pool, "abc")
    text = Text("abc")
    assert tree.match(text.keys, text.tokens, 2).tolist() == blocks[:2]
    assert tree.match(text.keys, text.tokens, 0).tolist() == []
    assert [pool.holders(block) for block in blocks] == [2, 2, 1]


def test_equal_texts_under_different_salts_never_meet(tree, pool):
    other = root_key(bytes(32), fingerprint=b"model", salt=b"another")
    remembered(tree, pool, "abc")
    assert known(tree, pool, "abc", other) == 0
    blocks = remembered(tree, pool, "abc", other)
    assert tree.figures.blocks == 6
    text = Text("abc", other)
    assert tree.match(text.keys, text.tokens, 3).tolist() == blocks


def test_a_colliding_key_with_other_tokens_is_a_miss(tree, pool):
    a, b = Text("a"), Text("b")
    key = [b"the same"]
    held = pool.allocate(2)
    assert tree.insert(key, a.tokens, held[:1]).tolist() == held[:1].tolist()
    assert tree.match(key, b.tokens, 1).tolist() == []
    assert tree.match(key, a.tokens, 1).tolist() == held[:1].tolist()


@pytest.mark.parametrize("position", range(64))
def test_tokens_are_compared_to_the_last(tree, pool, position):
    remembered(tree, pool, "a")
    text = Text("a")
    text.tokens[position] += 1
    assert tree.match(text.keys, text.tokens, 1).tolist() == []


def test_a_node_of_another_parent_is_a_miss(tree, pool):
    text = Text("ab")
    held = pool.allocate(3)
    tree.insert([b"first", b"second"], text.tokens, held)
    tree.insert([b"elsewhere"], text.tokens, held[2:])
    assert tree.match([b"elsewhere", b"second"], text.tokens, 2).tolist() == held[2:].tolist()
    assert tree.match([b"second"], text.tokens[64:], 1).tolist() == []


@pytest.mark.parametrize(
    ("keys", "placed"),
    [
        ([b"k", b"new"], 0),
        ([b"new", b"k", b"newer"], 1),
        ([b"new", b"new", b"newer"], 1),
        ([b"new", b"newer", b"new"], 2),
    ],
)
def test_nothing_is_put_in_place_of_or_under_a_foreign_node(tree, pool, keys, placed):
    first = remembered(tree, pool, "z")
    tree.insert([b"k"], Text("z").tokens, pool.allocate(1))
    held = pool.allocate(len(keys))
    found = tree.insert(keys, Text("abc").tokens, held)
    assert found.tolist() == held[:placed].tolist()
    assert tree.figures.blocks == 2 + placed
    assert [pool.holders(block) for block in held] == [2] * placed + [1] * (len(keys) - placed)
    assert pool.holders(first[0]) == 1


def test_a_second_copy_of_a_text_is_told_the_blocks_of_the_first(tree, pool):
    first = remembered(tree, pool, "ab")
    text = Text("abc")
    held = pool.allocate(5)
    found = tree.insert(text.keys, text.tokens, held).tolist()
    assert found == [*first, held[2]]
    assert [pool.holders(block) for block in held] == [1, 1, 2, 1, 1]


@pytest.mark.parametrize("blocks", ["free", "twice", "in the tree", "too few", "outside"])
def test_an_insert_of_wrong_blocks_is_refused_and_changes_nothing(tree, pool, blocks):
    own = remembered(tree, pool, "z")
    held = pool.allocate(2).tolist()
    wrong = {
        "free": [held[0], 15],
        "twice": [held[0], held[0]],
        "in the tree": [held[0], own[0]],
        "too few": held[:1],
        "outside": [held[0], 16],
    }
    before = [pool.holders(block) for block in range(16)]
    with pytest.raises(ValueError, match=r"block"):
        tree.insert(Text("ab").keys, Text("ab").tokens, wrong[blocks])
    assert [pool.holders(block) for block in range(16)] == before
    assert tree.figures.blocks == 1
    assert known(tree, pool, "ab") == 0


def test_fewer_tokens_than_the_keys_stand_for_are_refused(tree, pool):
    text = Text("ab")
    with pytest.raises(ValueError, match="2 keys stand for 128 tokens, 127 were given"):
        tree.insert(text.keys, text.tokens[:127], pool.allocate(2))
    with pytest.raises(ValueError, match="2 keys stand for 128 tokens, 127 were given"):
        tree.match(text.keys, text.tokens[:127], 2)


def test_negative_counts_are_refused(tree):
    with pytest.raises(ValueError, match="-1"):
        tree.evict(-1)
    with pytest.raises(ValueError, match="-1"):
        tree.match([], [], -1)


def test_leaves_go_first_and_then_their_parents(tree, pool):
    remembered(tree, pool, "abc")
    assert tree.evictable() == 3
    assert evicted(tree, pool, 2) == "cb"
    assert known(tree, pool, "abc") == 1
    assert pool.num_free == 15


def test_the_leaf_used_longest_ago_goes_first(tree, pool):
    remembered(tree, pool, "ab")
    remembered(tree, pool, "cd")
    remembered(tree, pool, "ax")
    assert known(tree, pool, "cd") == 2
    assert evicted(tree, pool, 100) == "bxadc"


def test_an_insert_of_what_is_there_is_a_use(tree, pool):
    remembered(tree, pool, "a")
    remembered(tree, pool, "b")
    remembered(tree, pool, "a")
    assert evicted(tree, pool, 1) == "b"


def test_a_parent_stays_while_a_sequence_holds_only_its_child(tree, pool):
    remembered(tree, pool, "a")
    text = Text("ab")
    held = pool.allocate(2)
    tree.insert(text.keys, text.tokens, held)
    assert tree.evictable() == 0
    assert tree.evict(1) == 0
    pool.release(held)
    assert tree.evictable() == 2
    assert tree.evict(5) == 2
    assert pool.num_free == 16


def test_a_held_leaf_is_passed_over_and_goes_when_it_is_released(tree, pool):
    remembered(tree, pool, "a")
    remembered(tree, pool, "b")
    text = Text("a")
    held = tree.match(text.keys, text.tokens, 1)
    remembered(tree, pool, "b")
    assert evicted(tree, pool, 2) == "b"
    assert evicted(tree, pool, 2) == ""
    pool.release(held)
    assert evicted(tree, pool, 2) == "a"


def test_figures_count_blocks_and_tokens(tree, pool):
    remembered(tree, pool, "abc")
    known(tree, pool, "abxy")
    text = Text("abc")
    pool.release(tree.match(text.keys, text.tokens, 2))
    tree.evict(1)
    figures = tree.figures
    assert (figures.blocks, figures.evicted_blocks) == (2, 1)
    assert (figures.hit_tokens, figures.missed_tokens) == (4 * 64, 2 * 64)


class AskedPool(BlockPool):
    """Counts how often somebody asks for holders."""

    asked = 0

    def holders(self, block):
        self.asked += 1
        return super().holders(block)


def test_evicting_one_by_one_looks_at_each_node_once():
    length = 512
    pool = AskedPool(2 * length)
    tree = PrefixTree(pool)
    running, idle = np.zeros(64 * length, np.int32), np.ones(64 * length, np.int32)
    tree.insert(chain_keys(ROOT, running), running, pool.allocate(length))
    held = pool.allocate(length)
    tree.insert(chain_keys(ROOT, idle), idle, held)
    pool.release(held)
    for _ in range(length):
        assert tree.evict(1) == 1
    # Each time the one leaf of the running sequence, which was used longer ago, and the one to go.
    assert pool.asked == 2 * length
