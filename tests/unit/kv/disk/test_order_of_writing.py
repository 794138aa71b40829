"""Bytes are on the disk before the row that names them, and rows are gone before their bytes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ellm.kv.disk import index_file, segment_log

from .blocks import PAGE_BYTES, all_found, block, chain, open_cache, put

QUOTA = 80 * PAGE_BYTES


class Trace:
    """What happened to the disk, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self._record(monkeypatch, os, "pwritev")
        self._record(monkeypatch, os, "fdatasync")
        self._record(monkeypatch, Path, "unlink")
        self._record(monkeypatch, segment_log, "sync_directory")
        connect = index_file._connect

        def connect_and_trace(path: Path, how: str) -> sqlite3.Connection:
            connection = connect(path, how)
            connection.set_trace_callback(self._statement)
            return connection

        monkeypatch.setattr(index_file, "_connect", connect_and_trace)

    def _record(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        call: Callable[..., Any] = getattr(owner, name)

        def recorded(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            return call(*arguments, **options)

        monkeypatch.setattr(owner, name, recorded)

    def _statement(self, text: str) -> None:
        word = text.split()[0]
        if word in ("INSERT", "UPDATE", "DELETE", "COMMIT"):
            self.calls.append(word)
        elif "synchronous" in text:
            self.calls.append(text)

    def since(self, mark: int) -> list[str]:
        """Return what happened after the first `mark` calls, repetitions left out."""
        calls = self.calls[mark:]
        return [call for index, call in enumerate(calls) if call != calls[index - 1] or not index]


def test_a_page_is_on_the_disk_before_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Trace(monkeypatch)
    with open_cache(tmp_path) as cache:
        put(cache, block("first"))
        mark = len(trace.calls)
        put(cache, block("second"))
        assert trace.since(mark) == ["pwritev", "fdatasync", "INSERT", "COMMIT"]
    # A commit is on the disk when it returns.
    assert "PRAGMA synchronous = FULL" in trace.calls
    made = [call for call in trace.calls if call in ("sync_directory", "pwritev")]
    assert made == ["sync_directory", "pwritev", "pwritev"]


def test_a_full_segment_is_on_the_disk_before_rows_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Trace(monkeypatch)
    with open_cache(tmp_path, quota_bytes=8 * PAGE_BYTES) as cache:  # a page a segment
        assert cache._writer is not None
        with cache._writer.pages._mutex:  # so that one commit covers them
            for each in chain("a", 4):
                cache.put(each.key, each.parent, each.tokens, each.payload)
        assert cache.flush(60)
        pages = [call for call in trace.calls if call in ("pwritev", "fdatasync", "INSERT")]
    assert pages.count("pwritev") == pages.count("fdatasync") == 4
    assert pages.index("fdatasync") == pages.index("pwritev") + 1


def test_moved_pages_are_on_the_disk_before_their_rows_and_the_old_file_goes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [block(f"kept/{index}") for index in range(4)]
    with open_cache(tmp_path, quota_bytes=QUOTA) as cache:
        put(cache, *kept, *(block(f"lost/{index}") for index in range(6)))
        assert all(all_found(cache, kept))
        put(cache, block("last"))
    trace = Trace(monkeypatch)
    with open_cache(tmp_path, quota_bytes=QUOTA) as cache:
        assert cache.flush(60)
        mark = len(trace.calls)
        cache.prune(8 * PAGE_BYTES)
        assert trace.since(mark) == [
            *["DELETE", "COMMIT"],
            *["pwritev", "fdatasync", "UPDATE", "DELETE", "COMMIT", "unlink"],
        ]
        assert all(all_found(cache, kept))
