"""How a process becomes the writer: it makes index and files agree, whatever was left behind."""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from ellm.kv.disk.index_file import INDEX_NAME, UnusableIndexError, open_for_writing, set_aside
from ellm.kv.disk.page_file import PageFile
from ellm.kv.disk.page_format import page_bytes
from ellm.kv.disk.page_index import Extent, Model, PageIndex, Place, Row
from ellm.kv.disk.page_writer import PageWriter
from ellm.kv.disk.private_files import WriterLock, is_regular
from ellm.kv.disk.segment_log import SegmentState
from ellm.kv.disk.segments import Segments

_LOCK_NAME = "lock"
# As nanoseconds, the largest that SQLite's integers hold: the year 2262.
_LATEST_SECONDS = (2**63 - 1) // 10**9
_LOGGER = logging.getLogger(__name__)


class UnwritableError(Exception):
    """Nothing can be written to the directory; what it has may still be read."""


def become_writer(segments: Segments, *, model: Model, quota_bytes: int) -> PageWriter | None:
    """Return the writer of the directory of `segments`, or None while another process is it.

    Raises:
        UnwritableError: The file system or the index cannot be written to.
    """
    with ExitStack() as undo:
        try:
            lock = WriterLock.try_acquire(segments.directory / _LOCK_NAME)
            if lock is None:
                return None
            undo.callback(lock.release)
            index = _open_index(segments)
            undo.callback(index.close)
            states = _reconcile(index, segments)
            writer = PageWriter(lock, index, segments, states, model=model, quota_bytes=quota_bytes)
        except (OSError, sqlite3.Error, UnusableIndexError) as error:
            raise UnwritableError(str(error)) from error
        undo.pop_all()
        return writer


def _open_index(segments: Segments) -> PageIndex:
    path = segments.directory / INDEX_NAME
    fill = partial(_scan, segments)
    try:
        return PageIndex(open_for_writing(path, fill))
    except UnusableIndexError as error:
        _LOGGER.warning("the index %s is made again from the pages: %s", path, error)
        set_aside(path)
        return PageIndex(open_for_writing(path, fill))


def _scan(segments: Segments, connection: sqlite3.Connection) -> None:
    """Put every page that has a whole header into an empty index.

    When pages were used is not known, so the time at which they were written stands in for it. Of
    pages with the same key, which a rewrite that was cut off leaves, the later one counts.
    """
    index = PageIndex(connection)
    for number in segments.numbers():
        if not is_regular(segments.path(number)):
            continue
        rows: list[Row] = []
        for offset, header in PageFile.open(segments.path(number)).headers():
            model = index.model_number(Model(header.fingerprint, header.payload_bytes))
            place = Place(number, offset, page_bytes(header.payload_bytes))
            created = min(header.created_seconds, _LATEST_SECONDS)
            rows.append(Row(model, header.key, header.parent, place, created * 10**9, created))
        index.add(rows)


def _reconcile(index: PageIndex, segments: Segments) -> dict[int, SegmentState]:
    """Make index and files agree, and return what the files hold.

    Rows of pages that are not there go. So does what no row names: pages that were written by a
    process which ended before it could commit them, and files of another format.
    """
    sizes = {number: _size(segments.path(number)) for number in segments.numbers()}
    with index.transaction():
        for number in index.extents():
            index.remove_beyond(number, sizes.get(number, 0))
    extents = index.extents()
    states: dict[int, SegmentState] = {}
    for number, size in sizes.items():
        path = segments.path(number)
        if number not in extents:
            with suppress(IsADirectoryError, PermissionError):
                path.unlink()
            continue
        states[number] = _cut(path, size, extents[number])
    return states


def _cut(path: Path, size: int, extent: Extent) -> SegmentState:
    """Cut off what lies behind the last page that the index knows."""
    if size > extent.end:
        PageFile.open(path, writable=True).truncate(extent.end)
    return SegmentState(size_bytes=extent.end, live_bytes=extent.live_bytes)


def _size(path: Path) -> int:
    """Return the bytes of a segment: 0 for what is no file of its own, as a link."""
    return os.lstat(path).st_size if is_regular(path) else 0
