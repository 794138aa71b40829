"""Everything that changes the directory: pages added, touched, dropped, evicted, cleared."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ellm.kv.disk.index_file import INDEX_NAME, is_damage, set_aside
from ellm.kv.disk.page_format import NO_PARENT, PageHeader, checksum, page_bytes
from ellm.kv.disk.page_index import Model, PageIndex, Place, Row
from ellm.kv.disk.private_files import WriterLock
from ellm.kv.disk.segment_log import SegmentLog, SegmentState, segment_bytes
from ellm.kv.disk.segments import Segments
from ellm.kv.disk.space import Space

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Put:
    """A block that is to be written.

    Attributes:
        key: Of the block.
        parent: Key of the block before it, `NO_PARENT` for the first.
        tokens: As `pack_tokens` returns them.
        payload: The block.
    """

    key: bytes
    parent: bytes
    tokens: bytes
    payload: bytes


class PageWriter:
    """The one writer of a directory; its methods may be called from any thread.

    The first failure of the disk ends all writing by this object: what is there is whole, since
    rows are committed last, and answers never depend on it.
    """

    def __init__(
        self,
        lock: WriterLock,
        index: PageIndex,
        segments: Segments,
        states: dict[int, SegmentState],
        *,
        model: Model,
        quota_bytes: int,
    ) -> None:
        """Take over the lock, and an index and files that recovery has made true.

        Raises:
            OSError: The last file cannot be written to.
            sqlite3.Error: The index cannot.
        """
        max_segment_bytes = segment_bytes(quota_bytes)
        self._lock = lock
        self._index = index
        self._segments = segments
        self._log = SegmentLog(segments, states, max_segment_bytes=max_segment_bytes)
        self._space = Space(index, self._log, segments)
        self._fingerprint = model.fingerprint
        self._model = index.model_number(model)
        # Half a segment stays free, for the live pages of one that is rewritten.
        self._limit_bytes = quota_bytes - max_segment_bytes // 2
        self._last_use = index.last_use()
        self._uncommitted: list[Row] = []
        self._used_again: list[bytes] = []
        self._mutex = threading.Lock()
        self.is_on = True

    def check_index(self) -> None:
        """Look for damage that opening the index, which has to be quick, did not find."""
        with self._changing() as changing:
            if changing:
                self._index.check()

    def write(self, puts: Sequence[Put]) -> int:
        """Make pages durable and return how many of `puts` were not written for want of room.

        A page that is there already counts as used. To make room for a page, others go only if the
        page before it is there: without that one it would be of no use.
        """
        dropped = len(puts)
        with self._changing() as changing:
            if changing:
                stamp = self._next_use()
                no_room = sum(not self._append(put, stamp) for put in puts)
                self._commit()
                dropped = no_room
                if self._used_again:
                    self._index.touch(self._model, self._used_again, stamp)
                    self._used_again.clear()
        return dropped

    def note(self, used: Collection[bytes], bad: Collection[Place]) -> None:
        """Note which pages were used, and remove those that were found damaged."""
        if not used and not bad:
            return
        with self._changing() as changing:
            if changing:
                with self._index.transaction():
                    self._index.touch(self._model, used, self._next_use())
                    for place in bad:
                        self._log.kill(place.segment, self._index.remove(place))

    def shrink(self, target_bytes: int) -> None:
        """Make all segments together take at most `target_bytes`."""
        with self._changing() as changing:
            if changing:
                self._space.shrink(target_bytes)

    def clear(self) -> None:
        """Delete all pages of all models."""
        with self._changing() as changing:
            if changing:
                with self._index.transaction():
                    self._index.remove_segments(list(self._index.extents()))
                for number in self._log.numbers:
                    self._log.delete(number)

    def close(self) -> None:
        """Let another process write."""
        with self._mutex:
            self.is_on = False
            with suppress(sqlite3.Error):
                self._index.close()
            self._lock.release()

    @contextmanager
    def _changing(self) -> Iterator[bool]:
        """Yield, alone, whether anything may be written; a failure of the disk ends writing."""
        with self._mutex:
            try:
                yield self.is_on
            except (OSError, sqlite3.Error) as error:
                self._turn_off(error)

    def _append(self, put: Put, stamp: int) -> bool:
        """Return whether the page is there, or will be with the next commit."""
        if self._index.has(self._model, put.key):
            self._used_again.append(put.key)
            return True
        length = page_bytes(len(put.payload))
        if self._log.total_bytes + length > self._limit_bytes and not self._make_room(put, length):
            return False
        header = PageHeader(
            fingerprint=self._fingerprint,
            key=put.key,
            parent=put.parent,
            tokens=put.tokens,
            payload_bytes=len(put.payload),
            payload_checksum=checksum(put.payload),
            created_seconds=max(0, int(time.time())),
        )
        place = self._log.append(header, put.payload)
        self._uncommitted.append(
            Row(self._model, put.key, put.parent, place, stamp, header.created_seconds)
        )
        return True

    def _make_room(self, put: Put, length: int) -> bool:
        # Rewriting and evicting go by the index: it has to know all that was appended.
        self._commit()
        if length > self._limit_bytes:
            return False
        if put.parent != NO_PARENT and not self._index.has(self._model, put.parent):
            return False
        return self._space.shrink(self._limit_bytes - length, {(self._model, put.parent)})

    def _commit(self) -> None:
        if not self._uncommitted:
            return
        self._log.sync()
        with self._index.transaction():
            self._index.add(self._uncommitted)
        self._uncommitted.clear()

    def _next_use(self) -> int:
        """Return the time in nanoseconds, or one more than before where the clock jumped back."""
        self._last_use = max(time.time_ns(), self._last_use + 1)
        return self._last_use

    def _turn_off(self, error: OSError | sqlite3.Error) -> None:
        self.is_on = False
        self._uncommitted.clear()
        self._log.cut_tail()
        _LOGGER.warning(
            "nothing more is written to the disk cache %s: %s; what it has is still read",
            self._segments.directory,
            getattr(error, "strerror", None) or error,
        )
        if isinstance(error, sqlite3.Error) and is_damage(error):
            # The next writer makes it again from the pages.
            with suppress(OSError):
                set_aside(self._segments.directory / INDEX_NAME)
