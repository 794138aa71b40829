"""The page files of a directory: their names, and those that are open for reading."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from pathlib import Path

from ellm.kv.disk.page_file import PageFile

# Files that are open for reading at once; with 256 MB each, a chat's pages lie in a few.
_MAX_OPEN = 32
_NAME = re.compile(r"segment-(\d{8,18})\.pages")


class Segments:
    """Opens page files by number and keeps the ones used last open; for any number of threads."""

    def __init__(self, directory: Path) -> None:
        """Read segments of `directory`."""
        self.directory = directory
        self._open: OrderedDict[int, PageFile] = OrderedDict()
        self._lock = threading.Lock()

    def path(self, number: int) -> Path:
        """Return where segment `number` is, or would be."""
        return self.directory / f"segment-{number:08d}.pages"

    def numbers(self) -> list[int]:
        """Return the numbers of everything that has a segment's name, in order.

        Raises:
            OSError: The directory cannot be read.
        """
        matches = (_NAME.fullmatch(path.name) for path in self.directory.iterdir())
        numbers = {int(match[1]): match[0] for match in matches if match}
        return sorted(n for n, name in numbers.items() if self.path(n).name == name)

    def get(self, number: int) -> PageFile:
        """Return a segment open for reading.

        Raises:
            OSError: There is none, or only something that is not a file of its own.
        """
        with self._lock:
            file = self._open.get(number)
            if file is None:
                file = self._open[number] = PageFile.open(self.path(number))
            self._open.move_to_end(number)
            if len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)
            return file

    def forget_unlinked(self) -> None:
        """Let go of files that were deleted, here or by another process: that frees their space."""
        with self._lock:
            for number in [number for number, file in self._open.items() if file.is_unlinked]:
                del self._open[number]

    def close(self) -> None:
        """Let go of all files; they close when nobody reads from them any more."""
        with self._lock:
            self._open.clear()

    def bytes_used(self) -> int:
        """Return the bytes of all segments.

        Raises:
            OSError: The directory cannot be read.
        """
        total = 0
        for number in self.numbers():
            try:
                total += self.path(number).lstat().st_size
            except FileNotFoundError:  # the writer has just deleted it
                continue
        return total
