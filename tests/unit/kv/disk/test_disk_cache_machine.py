"""The disk cache against a dictionary: it may lose blocks to its quota, and never changes one."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ellm.kv.disk.disk_cache import DiskCache

from .blocks import (
    FAST_FOLDER,
    FINGERPRINT,
    OTHER_FINGERPRINT,
    PAGE_BYTES,
    Block,
    all_found,
    block,
    chain,
    found,
    open_cache,
)

TRUNK = chain("trunk", 3)
# Three sequences, two of which share their first three blocks.
PATHS: list[list[Block]] = [
    [*TRUNK, *(block(f"left/{index}", TRUNK[-1]) for index in range(1))],
    [*TRUNK, *(block(f"right/{index}", TRUNK[-1]) for index in range(1))],
    chain("alone", 6),
    *([block(f"single/{index}")] for index in range(8)),
]


class DiskCacheMachine(RuleBasedStateMachine):
    """Whole sequences are put, read and lost; the cache is closed and opened at any time."""

    quota_pages: int
    fingerprints = (FINGERPRINT, OTHER_FINGERPRINT)

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(dir=FAST_FOLDER)
        self.model: dict[bytes, set[bytes]] = {each: set() for each in self.fingerprints}
        self.fingerprint = FINGERPRINT
        self.quota = self.quota_pages * PAGE_BYTES
        self.cache = self.open()

    def open(self) -> DiskCache:
        directory = Path(self.folder) / "cache"
        return open_cache(directory, fingerprint=self.fingerprint, quota_bytes=self.quota)

    def teardown(self) -> None:
        self.cache.close()
        shutil.rmtree(self.folder)

    @rule(path=st.sampled_from(PATHS), flush=st.booleans())
    def put_a_sequence(self, path: list[Block], flush: bool) -> None:
        for each in path:
            assert self.cache.put(each.key, each.parent, each.tokens, each.payload)
            self.model[self.fingerprint].add(each.key)
        if flush:
            assert self.cache.flush(60)

    @rule(path=st.sampled_from(PATHS))
    def what_is_read_was_put_and_has_its_bytes(self, path: list[Block]) -> None:
        for each in path:
            if found(self.cache, each):
                assert each.key in self.model[self.fingerprint]

    @rule(path=st.sampled_from(PATHS))
    def what_is_present_can_be_read(self, path: list[Block]) -> None:
        assert self.cache.flush(60)
        present = self.cache.present([each.key for each in path])
        assert all(all_found(self.cache, path[:present]))
        assert present == len(path) or not found(self.cache, path[present])

    @rule(fingerprint=st.sampled_from(fingerprints))
    def open_again(self, fingerprint: bytes) -> None:
        self.cache.close()
        self.fingerprint = fingerprint
        self.cache = self.open()
        assert self.cache.writable

    @rule()
    def every_page_is_whole(self) -> None:
        assert self.cache.flush(60)
        report = self.cache.verify()
        assert (report.good, report.bad) == (self.cache.pages, 0)

    @rule()
    def clear(self) -> None:
        assert self.cache.flush(60)
        self.cache.clear()
        self.model = {each: set() for each in self.fingerprints}
        assert (self.cache.pages, self.cache.bytes_used) == (0, 0)

    @invariant()
    def files_keep_within_the_quota(self) -> None:
        assert self.cache.bytes_used <= self.quota


class TinyQuotaMachine(DiskCacheMachine):
    """Room for fewer blocks than there are."""

    quota_pages = 12

    @rule(pages=st.integers(0, 12))
    def prune(self, pages: int) -> None:
        assert self.cache.flush(60)
        self.cache.prune(pages * PAGE_BYTES)
        assert self.cache.bytes_used <= pages * PAGE_BYTES

    @rule(pages=st.integers(2, 12))
    def open_with_another_quota(self, pages: int) -> None:
        self.cache.close()
        self.quota = max(pages * PAGE_BYTES, self.cache.bytes_used)
        self.cache = self.open()


class AmpleQuotaMachine(DiskCacheMachine):
    """Room for everything: nothing may be missing."""

    quota_pages = 1000

    @rule(path=st.sampled_from(PATHS))
    def what_was_put_is_there(self, path: list[Block]) -> None:
        assert self.cache.flush(60)
        there = self.model[self.fingerprint]
        assert all_found(self.cache, path) == [each.key in there for each in path]


SETTINGS = settings(deadline=None, max_examples=60, stateful_step_count=30)
TestTinyQuota = TinyQuotaMachine.TestCase
TestTinyQuota.settings = SETTINGS
TestAmpleQuota = AmpleQuotaMachine.TestCase
TestAmpleQuota.settings = SETTINGS
