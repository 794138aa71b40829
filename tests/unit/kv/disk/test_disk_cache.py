"""What the disk cache promises its askers, one by one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ellm.errors import ConfigError
from ellm.kv.disk import disk_cache
from ellm.kv.disk.disk_cache import DiskCache
from ellm.kv.disk.page_index import PageIndex

from .blocks import (
    AMPLE_BYTES,
    BLOCK_BYTES,
    FINGERPRINT,
    OTHER_FINGERPRINT,
    PAGE_BYTES,
    all_found,
    block,
    chain,
    fill,
    found,
    open_cache,
    put,
    segments,
)


def test_a_block_is_there_in_the_next_process(tmp_path: Path) -> None:
    blocks = chain("a", 5)
    fill(tmp_path, blocks)
    with open_cache(tmp_path) as cache:
        assert cache.present([each.key for each in blocks]) == 5
        assert all(all_found(cache, blocks))
        assert (cache.hits, cache.misses) == (5, 0)
        assert not found(cache, block("another"))
        assert (cache.hits, cache.misses) == (5, 1)


def test_present_counts_up_to_the_first_that_is_missing(tmp_path: Path) -> None:
    blocks = chain("a", 1100)
    fill(tmp_path, [*blocks[:1030], *blocks[1031:]], quota_bytes=4000 * PAGE_BYTES)
    keys = [each.key for each in blocks]
    with open_cache(tmp_path) as cache:
        assert cache.present(keys) == 1030
        assert cache.present(keys[:7]) == 7
        assert cache.present(keys[1030:]) == 0
        assert cache.present([]) == 0


def test_blocks_of_other_models_are_not_there(tmp_path: Path) -> None:
    blocks = chain("a", 3)
    fill(tmp_path, blocks)
    keys = [each.key for each in blocks]
    with open_cache(tmp_path, fingerprint=OTHER_FINGERPRINT) as cache:
        assert cache.present(keys) == 0
        assert not any(all_found(cache, blocks))
    with open_cache(tmp_path, block_bytes=BLOCK_BYTES + 1) as cache:
        assert cache.present(keys) == 0
        out = np.zeros(BLOCK_BYTES + 1, dtype=np.uint8)
        assert not cache.read(blocks[0].key, blocks[0].tokens, out)
        longer = chain("a", 3, nbytes=BLOCK_BYTES + 1)
        put(cache, *longer)
        assert all(all_found(cache, longer))
    with open_cache(tmp_path) as cache:
        assert all(all_found(cache, blocks))
        assert {each.block_bytes: each.pages for each in cache.holdings()} == {64: 3, 65: 3}


def test_a_block_of_other_tokens_is_not_served(tmp_path: Path) -> None:
    one = block("one")
    fill(tmp_path, [one])
    out = np.zeros(BLOCK_BYTES, dtype=np.uint8)
    with open_cache(tmp_path) as cache:
        assert not cache.read(one.key, one.tokens[::-1].copy(), out)


def test_what_the_caller_changes_after_a_put_does_not_matter(tmp_path: Path) -> None:
    one = block("one")
    payload = one.payload.copy()
    with open_cache(tmp_path) as cache:
        cache.put(one.key, None, one.tokens, payload)
        payload[:] = 0
        assert cache.flush(60)
        assert found(cache, one)


def test_the_end_of_the_sequence_that_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    old, new = chain("old", 10), chain("new", 10)
    with open_cache(tmp_path, quota_bytes=24 * PAGE_BYTES) as cache:
        put(cache, *new)
        put(cache, *old)
        assert all(all_found(cache, new))
        put(cache, *chain("third", 6))
        assert all(all_found(cache, new))
        there = all_found(cache, old)
        assert 0 < sum(there) < 10
        assert there == sorted(there, reverse=True)


def test_a_sequence_beyond_the_quota_keeps_its_beginning(tmp_path: Path) -> None:
    # Evicting the page before to make room for the next would leave pages that are of no use.
    blocks = chain("long", 50)
    with open_cache(tmp_path, quota_bytes=16 * PAGE_BYTES) as cache:
        put(cache, *blocks)
        there = all_found(cache, blocks)
        assert there == [True] * 15 + [False] * 35
        assert cache.dropped_puts == 35


def test_a_page_larger_than_the_quota_is_dropped(tmp_path: Path) -> None:
    with open_cache(tmp_path, quota_bytes=PAGE_BYTES - 1) as cache:
        put(cache, block("one"))
        assert (cache.pages, cache.bytes_used, cache.dropped_puts) == (0, 0, 1)


def test_a_smaller_quota_counts_when_something_is_put(tmp_path: Path) -> None:
    blocks = chain("a", 40)
    fill(tmp_path, blocks)
    quota = 10 * PAGE_BYTES
    with open_cache(tmp_path, quota_bytes=quota) as cache:
        assert all(all_found(cache, blocks))
        put(cache, block("new"))
        assert found(cache, block("new"))
        assert cache.bytes_used <= quota


def test_a_full_queue_drops_puts_without_waiting(tmp_path: Path) -> None:
    cache = DiskCache.open(
        tmp_path,
        fingerprint=FINGERPRINT,
        block_bytes=BLOCK_BYTES,
        quota_bytes=AMPLE_BYTES,
        queue_bytes=3 * BLOCK_BYTES,
    )
    blocks = chain("a", 9)
    with cache:
        assert cache._writer is not None
        with cache._writer.pages._mutex:  # as if the disk hung
            started = time.monotonic()
            taken = [cache.put(b.key, b.parent, b.tokens, b.payload) for b in blocks]
            assert time.monotonic() - started < 5
            assert not cache.flush(0.01)
            # What waits already needs no room.
            assert cache.put(blocks[1].key, blocks[1].parent, blocks[1].tokens, blocks[1].payload)
        assert taken == [True] * 3 + [False] * 6
        assert cache.flush(60)
        assert all_found(cache, blocks) == taken
        assert cache.dropped_puts == 6


def test_pages_are_laid_out_in_segments_of_bounded_size(tmp_path: Path) -> None:
    fill(tmp_path, chain("a", 40), quota_bytes=80 * PAGE_BYTES)
    sizes = [path.stat().st_size for path in segments(tmp_path)]
    assert sizes == [10 * PAGE_BYTES] * 4


def test_the_next_process_goes_on_in_the_last_segment(tmp_path: Path) -> None:
    for index in range(5):
        fill(tmp_path, [block(f"{index}")])
    assert [path.stat().st_size for path in segments(tmp_path)] == [5 * PAGE_BYTES]


def test_a_clock_that_jumps_back_does_not_make_new_pages_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = 16 * PAGE_BYTES
    fill(tmp_path, [block(f"old{index}") for index in range(12)], quota_bytes=quota)
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    monkeypatch.setattr(time, "time", lambda: -5.0)
    new = [block(f"new{index}") for index in range(6)]
    with open_cache(tmp_path, quota_bytes=quota) as cache:
        put(cache, *new)
        assert all(all_found(cache, new))


def test_closing_writes_what_is_queued_and_ends_everything(tmp_path: Path) -> None:
    one = block("one")
    cache = open_cache(tmp_path)
    cache.put(one.key, None, one.tokens, one.payload)
    cache.close()
    cache.close()
    assert not cache.put(one.key, None, one.tokens, one.payload)
    assert not cache.writable
    assert not cache.flush(0)
    assert cache.present([one.key]) == 0
    assert not found(cache, one)
    with open_cache(tmp_path) as again:
        assert found(again, one)


def test_a_second_one_reads_and_writes_after_the_first_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "_RETRY_SECONDS", 0.0)
    first, second = chain("a", 2)
    writer = open_cache(tmp_path)
    reader = open_cache(tmp_path)
    assert (writer.writable, reader.writable) == (True, False)
    put(writer, first)
    assert found(reader, first)
    assert not reader.put(second.key, second.parent, second.tokens, second.payload)
    assert reader.dropped_puts == 1
    for change in (lambda: reader.prune(0), reader.clear):
        with pytest.raises(ConfigError, match="another process writes"):
            change()
    writer.close()
    put(reader, second)
    assert reader.writable
    assert all(all_found(reader, [first, second]))
    reader.close()


def test_one_that_only_reads_never_takes_the_right_to_write(tmp_path: Path) -> None:
    one = block("one")
    with open_cache(tmp_path, read_only=True) as reader:
        assert not reader.put(one.key, None, one.tokens, one.payload)
        with open_cache(tmp_path) as writer:
            assert writer.writable
            put(writer, one)
            # The index was made after the reader was opened.
            assert found(reader, one)


def test_one_that_only_reads_follows_a_new_index(tmp_path: Path) -> None:
    old, new = block("old"), block("new")
    fill(tmp_path, [old])
    with open_cache(tmp_path, read_only=True) as reader:
        assert found(reader, old)
        (tmp_path / "index.sqlite").unlink()
        fill(tmp_path, [new])
        assert all_found(reader, [old, new]) == [True, True]


def test_keys_behind_a_missing_one_are_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = chain("a", 1300)
    fill(tmp_path, blocks[:600], quota_bytes=4000 * PAGE_BYTES)
    asked: list[int] = []
    ask = PageIndex._all

    def counted(index: PageIndex, question: str, values: Sequence[object] = ()) -> Any:
        asked.append(len(values) - 2)
        return ask(index, question, values)

    monkeypatch.setattr(PageIndex, "_all", counted)
    with open_cache(tmp_path, read_only=True) as cache:
        assert cache.present([each.key for each in blocks[:600]]) == 600
        assert cache.present([each.key for each in blocks]) == 600
        assert cache.present([each.key for each in blocks[600:]]) == 0
    assert asked == [512, 88, 512, 512, 512]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"key": b"short"}, "a key has 32 bytes, not 5"),
        ({"parent": b"short"}, "a key has 32 bytes, not 5"),
        ({"tokens": np.zeros(63, dtype=np.int32)}, "64 whole numbers"),
        ({"tokens": np.zeros(64)}, "64 whole numbers"),
        ({"tokens": np.full(64, 2**31)}, "tokens are int32"),
        ({"payload": np.zeros(BLOCK_BYTES + 1, dtype=np.uint8)}, "found uint8"),
        ({"payload": np.zeros(BLOCK_BYTES, dtype=np.int8)}, "found int8"),
        ({"payload": np.zeros(2 * BLOCK_BYTES, dtype=np.uint8)[::2]}, "contiguous"),
    ],
)
def test_wrong_shapes_are_refused(tmp_path: Path, what: dict[str, object], message: str) -> None:
    one = block("one")
    right = {"key": one.key, "parent": None, "tokens": one.tokens, "payload": one.payload}
    with open_cache(tmp_path) as cache, pytest.raises(ValueError, match=message):
        cache.put(**(right | what))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "what", [{"fingerprint": b"short"}, {"block_bytes": 0}, {"quota_bytes": -1}]
)
def test_sizes_that_cannot_be_are_refused(tmp_path: Path, what: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="bytes"):
        open_cache(tmp_path, **what)  # type: ignore[arg-type]
