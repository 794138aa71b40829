"""One segment: a file that pages are appended to, and that only ever goes away as a whole."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ellm.kv.disk.page_format import ALIGNMENT, HEADER_BYTES, PageHeader, checksum, page_bytes
from ellm.kv.disk.private_files import open_private

Payload = NDArray[np.uint8]

# A fast SSD reads this in 2 to 4 ms, about the time in which one page is checked and copied.
READ_AHEAD_BYTES = 8 << 20


class PageFile:
    """A segment's pages, read by `preadv` and written by `pwritev`.

    Reads, not mappings: a file that somebody truncates gives a short read and so a miss, where a
    mapping would give SIGBUS. The descriptor is closed when the last holder lets go of the object,
    so a thread that reads while another forgets the file still reads the right one.
    """

    def __init__(self, descriptor: int) -> None:
        """Own `descriptor`."""
        self._descriptor = descriptor
        self._advised_bytes = 0
        weakref.finalize(self, os.close, descriptor)

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> Self:
        """Open an existing segment.

        Raises:
            OSError: It is gone, is a link, or may not be read.
        """
        return cls(open_private(path, os.O_RDWR if writable else os.O_RDONLY))

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make a new segment, with mode 0600.

        Raises:
            OSError: The name is taken, or no file can be made.
        """
        return cls(open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))

    @property
    def size_bytes(self) -> int:
        """Bytes of the file now."""
        return os.fstat(self._descriptor).st_size

    @property
    def is_unlinked(self) -> bool:
        """Whether the file has no name any more: its space comes back when it is closed."""
        return os.fstat(self._descriptor).st_nlink == 0

    def read(self, offset: int, out: Payload) -> PageHeader | None:
        """Read the page at `offset`, its payload into `out`, and ask for the pages behind it.

        Args:
            offset: Where the page begins.
            out: uint8 (payload_bytes,), contiguous; holds nothing of use if None is returned.

        Returns:
            The header, or None unless header and payload are whole and of that length.

        Raises:
            OSError: The disk gives no answer.
        """
        raw = bytearray(HEADER_BYTES)
        if not _read_into(self._descriptor, [memoryview(raw), out.data], offset):
            return None
        self._read_ahead(offset + page_bytes(out.size))
        header = PageHeader.parse(raw)
        if header is None or header.payload_bytes != out.size:
            return None
        return header if checksum(out.data) == header.payload_checksum else None

    def read_whole(self, offset: int, length_bytes: int) -> tuple[PageHeader, Payload] | None:
        """Return header and payload of the page at `offset`, None unless they are whole.

        Args:
            offset: Where the page begins.
            length_bytes: What it takes in the file, alignment included.

        Raises:
            OSError: The disk gives no answer.
        """
        header = self.read_header(offset)
        if header is None or page_bytes(header.payload_bytes) != length_bytes:
            return None
        payload = np.empty(header.payload_bytes, dtype=np.uint8)
        again = self.read(offset, payload)
        return None if again is None else (again, payload)

    def read_header(self, offset: int) -> PageHeader | None:
        """Return the header at `offset`, None if there is no whole one.

        Raises:
            OSError: The disk gives no answer.
        """
        raw = bytearray(HEADER_BYTES)
        if not _read_into(self._descriptor, [memoryview(raw)], offset):
            return None
        return PageHeader.parse(raw)

    def headers(self) -> Iterator[tuple[int, PageHeader]]:
        """Yield offset and header of all pages; damaged ones are stepped over.

        Payloads are not looked at: that would read the whole file, and reading a page does it.

        Raises:
            OSError: The disk gives no answer.
        """
        offset, size = 0, self.size_bytes
        while offset < size:
            header = self.read_header(offset)
            if header is None or offset + page_bytes(header.payload_bytes) > size:
                offset += ALIGNMENT
                continue
            yield offset, header
            offset += page_bytes(header.payload_bytes)

    def write(self, offset: int, header: PageHeader, payload: bytes | memoryview) -> None:
        """Write a page at `offset`; it is on the disk after `sync`.

        Raises:
            OSError: The disk is full or broken; a part may have been written.
        """
        data = memoryview(payload)
        padding = bytes(page_bytes(data.nbytes) - HEADER_BYTES - data.nbytes)
        views = [memoryview(header.pack()), data, memoryview(padding)]
        while views:
            written = os.pwritev(self._descriptor, views, offset)
            offset += written
            views = _after(views, written)

    def sync(self) -> None:
        """Wait until everything written is on the disk.

        Raises:
            OSError: It cannot be brought there.
        """
        os.fdatasync(self._descriptor)

    def truncate(self, size_bytes: int) -> None:
        """Cut the file's end off.

        Raises:
            OSError: It cannot be cut.
        """
        os.ftruncate(self._descriptor, size_bytes)

    def _read_ahead(self, begin: int) -> None:
        """Ask for what is behind a page: blocks of a sequence are written one after another."""
        end = begin + READ_AHEAD_BYTES
        asked = self._advised_bytes
        # Only for what was not asked for by the read before; elsewhere in the file, for all of it.
        begin = asked if begin <= asked < end else begin
        self._advised_bytes = end
        os.posix_fadvise(self._descriptor, begin, end - begin, os.POSIX_FADV_WILLNEED)


def _read_into(descriptor: int, views: list[memoryview], offset: int) -> bool:
    """Fill all of `views` from `offset` on; return whether the file had that much."""
    while views:
        count = os.preadv(descriptor, views, offset)
        if count == 0:
            return False
        offset += count
        views = _after(views, count)
    return True


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of `views` after their first `count` bytes."""
    left: list[memoryview] = []
    for view in views:
        if count < view.nbytes:
            left.append(view[count:])
        count = max(0, count - view.nbytes)
    return left
