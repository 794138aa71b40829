"""A disk that is full, broken or read-only ends writing; reading and answers go on."""

from __future__ import annotations

import errno
import logging
import os
import resource
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ellm.kv.disk import index_file, recovery
from ellm.kv.disk.disk_cache import DiskCache
from ellm.kv.disk.page_index import PageIndex

from .blocks import PAGE_BYTES, Block, all_found, block, chain, fill, open_cache, put, segments

OLD = chain("old", 4)
NEW = chain("new", 4)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    fill(tmp_path, OLD)
    return tmp_path


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def put_in_vain(cache: DiskCache, blocks: list[Block]) -> None:
    for each in blocks:
        cache.put(each.key, each.parent, each.tokens, each.payload)
    assert not cache.flush(60)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_a_failed_write_ends_writing_with_one_warning(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
    code: int,
) -> None:
    with open_cache(directory) as cache:
        with monkeypatch.context() as patched:
            patched.setattr(os, call, failing(code))
            put_in_vain(cache, NEW)
            put_in_vain(cache, NEW)
        put_in_vain(cache, NEW)
        assert not cache.writable
        assert cache.dropped_puts == 12
        assert all(all_found(cache, OLD))
        assert not any(all_found(cache, NEW))
        assert cache.pages == 4
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert os.strerror(code) in caplog.text
    with open_cache(directory) as cache:
        assert [path.stat().st_size for path in segments(directory)] == [4 * PAGE_BYTES]
        put(cache, *NEW)
        assert all(all_found(cache, [*OLD, *NEW]))


def test_a_write_that_is_cut_short_is_gone_on_with(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwritev

    def short(descriptor: int, views: list[memoryview], offset: int) -> int:
        return whole(descriptor, [views[0][:100]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    with open_cache(directory) as cache:
        put(cache, *NEW)
        assert all(all_found(cache, NEW))


def test_a_read_that_is_cut_short_is_gone_on_with(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.preadv

    def short(descriptor: int, views: list[memoryview], offset: int) -> int:
        return whole(descriptor, [views[0][:100]], offset)

    monkeypatch.setattr(os, "preadv", short)
    with open_cache(directory) as cache:
        assert all(all_found(cache, OLD))


def test_a_real_limit_on_the_size_of_files_ends_writing(directory: Path) -> None:
    # SIGXFSZ is ignored by Python, so the kernel answers EFBIG after a part was written.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_cache(directory) as cache:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6 * PAGE_BYTES + 100, hard))
        try:
            put_in_vain(cache, NEW)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        # The part of a page that was written is given back at once.
        assert cache.bytes_used == 6 * PAGE_BYTES
        assert all(all_found(cache, OLD))
    with open_cache(directory) as cache:
        assert all(all_found(cache, OLD))
        put(cache, *NEW)
        assert cache.verify().bad == 0


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR])
def test_an_index_that_cannot_be_written_ends_writing(
    directory: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = code
        raise error

    with open_cache(directory) as cache:
        monkeypatch.setattr(PageIndex, "add", fail)
        put_in_vain(cache, NEW)
        monkeypatch.undo()
        assert not cache.writable
        assert all(all_found(cache, OLD))
    with open_cache(directory) as cache:
        assert cache.pages == 4


def test_damage_that_is_found_while_writing_is_mended_by_the_next(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    with open_cache(directory) as cache:
        monkeypatch.setattr(PageIndex, "add", fail)
        put_in_vain(cache, NEW)
        monkeypatch.undo()
    assert not (directory / "index.sqlite").exists()
    with open_cache(directory) as cache:
        assert all(all_found(cache, OLD))


def test_a_read_only_file_system_is_only_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_read_only(monkeypatch)
    with open_cache(directory) as cache:
        assert not cache.writable
        assert cache.present([each.key for each in OLD]) == 4
        assert all(all_found(cache, OLD))
        put_in_vain(cache, NEW)
    assert len(caplog.records) == 1
    assert "is only read" in caplog.text
    assert {path.name for path in directory.iterdir()} == {
        "lock",
        "index.sqlite",
        "segment-00000001.pages",
    }


def make_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have system calls and SQLite answer as on a read-only mount; root ignores permission bits."""
    open_file, connect = os.open, index_file._connect

    def open_reading(path: Path, flags: int, *rest: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return open_file(path, flags, *rest)

    def connect_reading(path: Path, how: str) -> sqlite3.Connection:
        if "immutable" not in how:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(path, how)

    monkeypatch.setattr(os, "open", open_reading)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(index_file, "_connect", connect_reading)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_an_error_of_reading_is_a_miss(
    directory: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with open_cache(directory) as cache:
        with monkeypatch.context() as patched:
            patched.setattr(os, "preadv", failing(code))
            assert not any(all_found(cache, OLD))
        # A machine that is short of descriptors says nothing about the page.
        assert all_found(cache, OLD) == [code == errno.EMFILE] * 4


def test_a_writer_that_cannot_start_leaves_a_reader(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_reconcile", failing(errno.EIO))
    with open_cache(directory) as cache:
        assert not cache.writable
        assert all(all_found(cache, OLD))
        assert not cache.put(NEW[0].key, None, NEW[0].tokens, NEW[0].payload)
    monkeypatch.undo()
    # It let go of the lock.
    with open_cache(directory) as cache:
        assert cache.writable


def test_a_thread_that_ends_leaves_nobody_waiting(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    with open_cache(directory) as cache:
        assert cache._writer is not None
        with monkeypatch.context() as patched:
            patched.setattr(PageIndex, "add", fail)
            patched.setattr("threading.excepthook", lambda _: None)
            with cache._writer.pages._mutex:
                cache.put(NEW[0].key, None, NEW[0].tokens, NEW[0].payload)
                while cache._writer._queue._puts:  # until it is taken, so that the others wait
                    time.sleep(0.001)
                for each in NEW[1:]:
                    cache.put(each.key, each.parent, each.tokens, each.payload)
            started = time.monotonic()
            assert not cache.flush(60)
            assert time.monotonic() - started < 30
        assert not cache.writable
        assert not cache.put(block("x").key, None, block("x").tokens, block("x").payload)
        assert all(all_found(cache, OLD))
