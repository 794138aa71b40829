"""The end of the page files that is written to, and what each file is still good for."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from ellm.kv.disk.page_file import PageFile
from ellm.kv.disk.page_format import PageHeader, page_bytes
from ellm.kv.disk.page_index import Place
from ellm.kv.disk.private_files import sync_directory
from ellm.kv.disk.segments import Segments

# Space comes back in files, so files are what eviction and rewriting work in. 256 MB are 60 to 300
# pages: rewriting one copies less than 128 MB, about a second of a slow disk, and 100 GB are 400
# files. With 1 GB, a rewrite would hold new pages up for seconds and need 512 MB of spare room; one
# file per page would be as many files as pages, each with a sync of its own and of the directory.
MAX_SEGMENT_BYTES = 256 << 20
# A small quota has smaller files: room for one to be rewritten is kept free.
_SEGMENTS_IN_QUOTA = 8


def segment_bytes(quota_bytes: int) -> int:
    """Return the size of a segment; one with a single page may be larger."""
    return min(MAX_SEGMENT_BYTES, quota_bytes // _SEGMENTS_IN_QUOTA)


@dataclass(slots=True)
class SegmentState:
    """One file, as the writer knows it.

    Attributes:
        size_bytes: Bytes of its pages, live or dead; also where the next one goes.
        live_bytes: Bytes of pages that are in the index, or will be with the next commit.
    """

    size_bytes: int
    live_bytes: int


class SegmentLog:
    """Appends pages; a file that is full is followed by another, and no name is used twice.

    Methods that write raise `OSError` where the disk is full or broken; only the writer calls them.
    """

    def __init__(
        self, segments: Segments, states: dict[int, SegmentState], *, max_segment_bytes: int
    ) -> None:
        """Go on behind `states`, which recovery has made true."""
        self._segments = segments
        self._states = states
        self._max_segment_bytes = max_segment_bytes
        self._number = max([0, *segments.numbers(), *states])
        self._file: PageFile | None = None
        state = states.get(self._number)
        if state is not None and state.size_bytes < max_segment_bytes:
            self._file = PageFile.open(segments.path(self._number), writable=True)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(state.size_bytes for state in self._states.values())

    @property
    def numbers(self) -> list[int]:
        """Numbers of the files."""
        return list(self._states)

    def append(self, header: PageHeader, payload: bytes | memoryview) -> Place:
        """Write a page behind the last; `sync` makes it durable."""
        length = page_bytes(header.payload_bytes)
        file = self._file
        if file is None or self._states[self._number].size_bytes + length > self._max_segment_bytes:
            file = self._next_file()
        state = self._states[self._number]
        place = Place(self._number, state.size_bytes, length)
        file.write(place.offset, header, payload)
        state.size_bytes += length
        state.live_bytes += length
        return place

    def sync(self) -> None:
        """Wait until every page that was appended is on the disk."""
        if self._file is not None:
            self._file.sync()

    def leave(self, number: int) -> None:
        """Have the next page go into another file than segment `number`."""
        if number == self._number:
            self.sync()
            self._file = None

    def cut_tail(self) -> None:
        """Give back what a failed write left behind the last page."""
        if self._file is not None:
            with suppress(OSError):
                self._file.truncate(self._states[self._number].size_bytes)

    def kill(self, segment: int, dead_bytes: int) -> None:
        """Note that pages of a segment left the index."""
        if segment in self._states:
            self._states[segment].live_bytes -= dead_bytes

    def most_wasteful(self) -> int | None:
        """Return the segment with the smallest share of live bytes, if that is below one half."""
        shares = {
            number: state.live_bytes / state.size_bytes
            for number, state in self._states.items()
            if state.live_bytes * 2 < state.size_bytes
        }
        return min(shares, key=shares.__getitem__, default=None)

    def delete(self, number: int) -> None:
        """Delete a segment that no row of the index names any more."""
        if number == self._number:
            self._file = None
        self._segments.path(number).unlink(missing_ok=True)
        self._segments.forget_unlinked()
        del self._states[number]

    def _next_file(self) -> PageFile:
        self.leave(self._number)
        number = self._number + 1
        file = PageFile.create(self._segments.path(number))
        # Else a power cut could leave rows of a file whose name was lost.
        sync_directory(self._segments.directory)
        self._number, self._file = number, file
        self._states[number] = SegmentState(size_bytes=0, live_bytes=0)
        return file
