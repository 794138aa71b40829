"""How room is made: dead bytes are given back first, then pages that nobody asked for longest."""

from __future__ import annotations

from collections.abc import Collection

from ellm.kv.disk.page_file import PageFile, Payload
from ellm.kv.disk.page_format import PageHeader
from ellm.kv.disk.page_index import PageIndex, Place, Row, damaged
from ellm.kv.disk.segment_log import SegmentLog
from ellm.kv.disk.segments import Segments


class Space:
    """Evicts and rewrites for the writer.

    At every moment the index names whole pages only: rows go before files do, and a page that is
    moved is on the disk before its row says so. A reader that still has the old file open reads the
    same page there; one that comes too late finds no file, and asks the index again.
    """

    def __init__(self, index: PageIndex, log: SegmentLog, segments: Segments) -> None:
        """Work on the writer's index and files."""
        self._index = index
        self._log = log
        self._segments = segments

    def shrink(self, target_bytes: int, kept: Collection[tuple[int, bytes]] = ()) -> bool:
        """Make the files take at most `target_bytes`; return whether they do.

        In between they take up to half a segment more, while one is rewritten.

        Args:
            target_bytes: For all segments together.
            kept: Number of the model and key of pages that must stay.

        Raises:
            OSError: The disk is full or broken.
            sqlite3.Error: The index cannot be changed.
        """
        while self._log.total_bytes > target_bytes:
            wasteful = self._log.most_wasteful()
            if wasteful is not None:
                self._rewrite(wasteful)
            elif not self._evict(kept):
                return False
        return True

    def _evict(self, kept: Collection[tuple[int, bytes]]) -> int:
        """Evict until there is a segment worth rewriting; return how many pages went."""
        evicted = 0
        row: Row | None = None
        with self._index.transaction():
            while self._log.most_wasteful() is None:
                row = self._index.oldest_leaf(kept, removed=row)
                if row is None:
                    break
                dead_bytes = self._index.remove(row.place)
                if not dead_bytes:  # it would be found again, for ever
                    raise damaged("a page that was found is not there")
                self._log.kill(row.place.segment, dead_bytes)
                evicted += 1
        return evicted

    def _rewrite(self, number: int) -> None:
        """Move the live pages of a segment to the end of the log, and delete it."""
        rows = self._index.pages_of(number)
        moves: list[tuple[Place, Place]] = []
        if rows:
            self._log.leave(number)
            for row in rows:
                page = self._read(row)
                if page is not None:
                    header, payload = page
                    moves.append((row.place, self._log.append(header, payload.data)))
            self._log.sync()
        with self._index.transaction():
            self._index.move(moves)
            # What is left there could not be read.
            self._index.remove_segments([number])
        self._log.delete(number)

    def _read(self, row: Row) -> tuple[PageHeader, Payload] | None:
        try:
            file: PageFile = self._segments.get(row.place.segment)
            page = file.read_whole(row.place.offset, row.place.length_bytes)
        except OSError:
            return None
        return page if page is not None and page[0].key == row.key else None
