"""Which page lies where: the questions that are asked of the index, and its changes."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from ellm.kv.disk.page_format import PAGE_TOKENS

# SQLite before 3.32 takes 999 values in a statement. One question covers 32K tokens.
_KEYS_PER_QUESTION = 512
_COLUMNS = "model, key, parent, segment, offset, length_bytes, last_used, created_seconds"
# A page that names itself as its parent, which only damage can make, is one too.
_IS_LEAF = (
    "NOT EXISTS (SELECT 1 FROM pages AS next WHERE next.model = page.model "
    "AND next.parent = page.key AND next.key != page.key)"
)


class Place(NamedTuple):
    """Where a page lies; offset and length in bytes, alignment included."""

    segment: int
    offset: int
    length_bytes: int


class Model(NamedTuple):
    """Whose pages can be exchanged: one fingerprint and size of a block."""

    fingerprint: bytes
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """One page in the index.

    Attributes:
        model: Number of its model in this index.
        key: Of the block.
        parent: Key of the block before it.
        place: Where the page lies.
        last_used: Larger is later; nanoseconds where the clock never jumped back.
        created_seconds: By the wall clock.
    """

    model: int
    key: bytes
    parent: bytes
    place: Place
    last_used: int
    created_seconds: int


@dataclass(frozen=True, slots=True)
class Extent:
    """What the index knows of a segment.

    Attributes:
        end: Byte behind its last page.
        live_bytes: Bytes of its pages.
    """

    end: int
    live_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What the cache holds of one model.

    Attributes:
        fingerprint: As given to `DiskCache.open`.
        block_bytes: Bytes of a block.
        pages: Pages; each is 64 tokens.
        bytes_used: What they take on the disk.
        created_seconds: When the first of them was written, by the wall clock.
        last_used_seconds: When one of them was last used.
    """

    fingerprint: bytes
    block_bytes: int
    pages: int
    bytes_used: int
    created_seconds: float
    last_used_seconds: float


class PageIndex:
    """The index over one connection, for any number of threads.

    Every method may raise `sqlite3.Error`.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Own `connection`, which commits each statement outside of `transaction`."""
        self._connection = connection
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes within durable together, or none if it is left by an exception.

        One within another is part of that.
        """
        with self._lock:
            if self._connection.in_transaction:
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def places(self, model: Model, keys: Sequence[bytes]) -> dict[bytes, Place]:
        """Return the places of leading `keys`: all up to the first that is missing, perhaps more.

        One question per 512 keys.
        """
        found: dict[bytes, Place] = {}
        for begin in range(0, len(keys), _KEYS_PER_QUESTION):
            asked = keys[begin : begin + _KEYS_PER_QUESTION]
            rows = self._all(
                "SELECT key, segment, offset, length_bytes FROM pages WHERE model = "
                "(SELECT model FROM models WHERE fingerprint = ? AND block_bytes = ?) "
                f"AND key IN ({','.join('?' * len(asked))})",
                (*model, *asked),
            )
            found |= {key: Place(*place) for key, *place in rows if _are_sizes(place)}
            if len(rows) < len(asked):
                break
        return found

    def model_number(self, model: Model) -> int:
        """Return the number of a model, which it gets by the first call."""
        self._all("INSERT OR IGNORE INTO models (fingerprint, block_bytes) VALUES (?, ?)", model)
        question = "SELECT model FROM models WHERE fingerprint = ? AND block_bytes = ?"
        number: int = self._all(question, model)[0][0]
        return number

    def has(self, model: int, key: bytes) -> bool:
        """Return whether there is a page."""
        return bool(self._all("SELECT 1 FROM pages WHERE model = ? AND key = ?", (model, key)))

    def add(self, rows: Iterable[Row]) -> None:
        """Add pages; one of the same key is replaced."""
        values = [
            (row.model, row.key, row.parent, *row.place, row.last_used, row.created_seconds)
            for row in rows
        ]
        with self._lock:
            self._connection.executemany(
                f"INSERT OR REPLACE INTO pages ({_COLUMNS}, tokens) "
                f"VALUES (?, ?, ?, ?, ?, ?, ?, ?, {PAGE_TOKENS})",
                values,
            )

    def move(self, moves: Iterable[tuple[Place, Place]]) -> None:
        """Have pages lie in other places, given as (from, to)."""
        values = [(*new, old.segment, old.offset) for old, new in moves]
        with self._lock:
            self._connection.executemany(
                "UPDATE pages SET segment = ?, offset = ?, length_bytes = ? "
                "WHERE segment = ? AND offset = ?",
                values,
            )

    def touch(self, model: int, keys: Iterable[bytes], last_used: int) -> None:
        """Note that pages were used."""
        with self.transaction():
            self._connection.executemany(
                "UPDATE pages SET last_used = ? WHERE model = ? AND key = ?",
                [(last_used, model, key) for key in keys],
            )

    def remove(self, place: Place) -> int:
        """Remove the page at `place`; return the bytes that are dead now, 0 if there is none."""
        question = "SELECT length_bytes FROM pages WHERE segment = ? AND offset = ?"
        with self._lock:
            removed: int = sum(length for (length,) in self._all(question, place[:2]))
            self._all("DELETE FROM pages WHERE segment = ? AND offset = ?", place[:2])
        return removed

    def remove_segments(self, segments: Iterable[int]) -> None:
        """Remove all pages of segments."""
        with self._lock:
            self._connection.executemany(
                "DELETE FROM pages WHERE segment = ?", [(number,) for number in segments]
            )

    def remove_beyond(self, segment: int, size_bytes: int) -> None:
        """Remove the pages of a segment that its file is too short for."""
        self._all(
            "DELETE FROM pages WHERE segment = ? AND offset + length_bytes > ?",
            (segment, size_bytes),
        )

    def oldest_leaf(
        self, kept: Collection[tuple[int, bytes]] = (), *, removed: Row | None = None
    ) -> Row | None:
        """Return the page that was not used for longest among those without a page behind them.

        A page is of no use without all before it, so the end of a sequence goes first.

        Args:
            kept: Number of the model and key of pages that are not wanted.
            removed: What was returned before and has been removed since, with nothing else changed.
        """
        rows: list[Row] = []
        if removed is not None:
            # Was the page before it not used later, then no leaf is older. Without this question a
            # long sequence would be walked along from its beginning for each of its pages.
            rows += self._iterate(
                f"SELECT {_COLUMNS} FROM pages AS page "
                f"WHERE model = ? AND key = ? AND last_used <= ? AND {_IS_LEAF}",
                (removed.model, removed.parent, removed.last_used),
            )
        if all((row.model, row.key) in kept for row in rows):
            # Sequences are touched as a whole: the walk passes few pages before it meets a leaf.
            rows += self._iterate(
                f"SELECT {_COLUMNS} FROM pages AS page WHERE {_IS_LEAF} ORDER BY last_used LIMIT ?",
                (len(kept) + 1,),
            )
        return next((row for row in rows if (row.model, row.key) not in kept), None)

    def pages_of(self, segment: int) -> list[Row]:
        """Return the pages of a segment in their order."""
        return list(
            self._iterate(
                f"SELECT {_COLUMNS} FROM pages WHERE segment = ? ORDER BY offset", (segment,)
            )
        )

    def all_places(self) -> list[tuple[Model, bytes, Place]]:
        """Return model, key and place of every page, in the order of the files."""
        rows = self._all(
            "SELECT fingerprint, block_bytes, key, segment, offset, length_bytes "
            "FROM pages JOIN models USING (model) ORDER BY segment, offset"
        )
        return [(Model(*row[:2]), row[2], Place(*row[3:])) for row in rows]

    def extents(self) -> dict[int, Extent]:
        """Return what the index knows of each segment that has pages."""
        rows = self._all(
            "SELECT segment, MAX(offset + length_bytes), SUM(length_bytes) FROM pages "
            "GROUP BY segment"
        )
        return {segment: Extent(end, live) for segment, end, live in rows}

    def last_use(self) -> int:
        """Return the latest `last_used`, 0 for an empty index."""
        latest: int = self._all("SELECT COALESCE(MAX(last_used), 0) FROM pages")[0][0]
        return latest

    def count(self) -> int:
        """Return the number of pages."""
        pages: int = self._all("SELECT COUNT(*) FROM pages")[0][0]
        return pages

    def holdings(self) -> list[Holding]:
        """Return what there is of each model, the one used last first."""
        rows = self._all(
            "SELECT fingerprint, block_bytes, COUNT(*), SUM(length_bytes), MIN(created_seconds), "
            "MAX(last_used) FROM pages JOIN models USING (model) GROUP BY model ORDER BY 6 DESC"
        )
        return [
            Holding(
                fingerprint=fingerprint,
                block_bytes=block_bytes,
                pages=pages,
                bytes_used=bytes_used,
                created_seconds=float(created),
                last_used_seconds=last_used / 1e9,
            )
            for fingerprint, block_bytes, pages, bytes_used, created, last_used in rows
        ]

    def check(self) -> None:
        """Check tables and their indexes against one another: 8 microseconds a page.

        Raises:
            sqlite3.DatabaseError: They are damaged.
        """
        found: str = self._all("PRAGMA integrity_check(1)")[0][0]
        if found != "ok":
            raise damaged(found)

    def _iterate(self, question: str, values: Sequence[object]) -> Iterator[Row]:
        for model, key, parent, segment, offset, length, *times in self._all(question, values):
            yield Row(model, key, parent, Place(segment, offset, length), *times)

    def _all(self, question: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(question, values).fetchall()


def damaged(what: str) -> sqlite3.DatabaseError:
    """Return the error that SQLite raises for a damaged file."""
    error = sqlite3.DatabaseError(what)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _are_sizes(values: Iterable[object]) -> bool:
    """Return whether values that a reader found in an index, which may be damaged, are sizes."""
    return all(isinstance(value, int) and value >= 0 for value in values)
