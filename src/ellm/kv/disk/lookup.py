"""Where pages are, for askers: the index as it is now, less the pages that turned out damaged."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ellm.kv.disk.index_file import open_for_reading
from ellm.kv.disk.page_index import Holding, Model, PageIndex, Place

_Found = TypeVar("_Found")


class Lookup:
    """Asks the index; for any number of threads, and beside a writer in this or another process.

    An index that is missing, damaged or locked has no pages: nothing here raises. When a writer
    makes the index anew, the next question goes to the new one.
    """

    def __init__(self, path: Path) -> None:
        """Look pages up in the index at `path`, as soon as there is one."""
        self._path = path
        self._index: PageIndex | None = None
        self._identity: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._bad: set[Place] = set()
        self._closed = False

    def places(self, model: Model, keys: Sequence[bytes]) -> list[Place]:
        """Return the places of the leading `keys`, up to the first whose page is not there."""
        empty: dict[bytes, Place] = {}
        found = self._ask(lambda index: index.places(model, keys), empty)
        leading: list[Place] = []
        for key in keys:
            place = found.get(key)
            if place is None or place in self._bad:
                break
            leading.append(place)
        return leading

    def mark_bad(self, place: Place) -> None:
        """Have the page at `place` count as not there, whatever the index says."""
        self._bad.add(place)

    def all_places(self) -> list[tuple[Model, bytes, Place]]:
        """Return model, key and place of every page of the index."""
        empty: list[tuple[Model, bytes, Place]] = []
        return self._ask(lambda index: index.all_places(), empty)

    def count(self) -> int:
        """Return the number of pages of all models."""
        return self._ask(lambda index: index.count(), 0)

    def holdings(self) -> list[Holding]:
        """Return what there is of each model."""
        empty: list[Holding] = []
        return self._ask(lambda index: index.holdings(), empty)

    def close(self) -> None:
        """Close the index; there are no pages from now on."""
        with self._lock:
            self._closed = True
            self._forget()

    def _ask(self, question: Callable[[PageIndex], _Found], otherwise: _Found) -> _Found:
        try:
            index = self._current()
            return otherwise if index is None else question(index)
        except sqlite3.Error:
            return otherwise

    def _current(self) -> PageIndex | None:
        """Return the index that has the name now."""
        try:
            status = os.lstat(self._path)
        except OSError:
            status = None
        identity = None if status is None else (status.st_dev, status.st_ino)
        with self._lock:
            if self._closed:
                return None
            if identity != self._identity or self._index is None:
                self._forget()
                connection = None if identity is None else open_for_reading(self._path)
                if connection is not None:
                    self._index, self._identity = PageIndex(connection), identity
            return self._index

    def _forget(self) -> None:
        index, self._index, self._identity = self._index, None, None
        if index is not None:
            index.close()
