"""The index as an SQLite file: how it is made, opened, recognised and set aside."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ellm.kv.disk.private_files import is_regular, open_private

INDEX_NAME = "index.sqlite"
SCHEMA_VERSION = 1
# An asker never waits for the writer (write-ahead log), only for one who makes or mends the index.
BUSY_TIMEOUT_SECONDS = 5.0

# "eLLM": tells our file from any other SQLite database.
_APPLICATION_ID = 0x654C4C4D
# Primary result codes of https://www.sqlite.org/rescode.html; IOERR_SHORT_READ is a truncated file.
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR_SHORT_READ)

# `WITHOUT ROWID`: looking a key up is one descent, and the row is there. Not `STRICT`, which SQLite
# before 3.37 does not have; the checks are what `quick_check` finds damage by.
_SCHEMA = """
CREATE TABLE models (
    model INTEGER PRIMARY KEY, fingerprint BLOB NOT NULL, block_bytes INTEGER NOT NULL,
    UNIQUE (fingerprint, block_bytes)
);
CREATE TABLE pages (
    model INTEGER NOT NULL, key BLOB NOT NULL, parent BLOB NOT NULL,
    segment INTEGER NOT NULL, offset INTEGER NOT NULL, length_bytes INTEGER NOT NULL,
    tokens INTEGER NOT NULL, last_used INTEGER NOT NULL, created_seconds INTEGER NOT NULL,
    PRIMARY KEY (model, key),
    CHECK (typeof(segment) = 'integer' AND segment > 0),
    CHECK (typeof(offset) = 'integer' AND offset >= 0),
    CHECK (typeof(length_bytes) = 'integer' AND length_bytes > 0),
    CHECK (typeof(last_used) = 'integer' AND typeof(created_seconds) = 'integer')
) WITHOUT ROWID;
CREATE INDEX pages_by_parent ON pages (model, parent);
CREATE INDEX pages_by_use ON pages (last_used);
CREATE INDEX pages_by_place ON pages (segment, offset);
"""
_STATEMENTS = [statement.strip() for statement in _SCHEMA.split(";")[:-1]]


class UnusableIndexError(Exception):
    """The file is damaged, of another version or no index of ours; it can be made again."""


def open_for_writing(path: Path, fill: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    """Return a connection to the index; a new one is filled before it counts.

    Args:
        path: Of the file; made when missing, with mode 0600, which SQLite's side files take over.
        fill: Puts into a new index what the segments hold.

    Raises:
        UnusableIndexError: There is a file, but no index of this version.
        sqlite3.Error: The index cannot be written.
        OSError: Likewise.
    """
    if not os.path.lexists(path):
        # SQLite deletes the log of an index that was here before, since this one is empty.
        os.close(open_private(path, os.O_RDWR | os.O_CREAT))
    elif not is_regular(path):
        raise UnusableIndexError("it is no file of its own")
    connection = _connect(path, "mode=rw")
    try:
        _prepare(connection, fill)
    except sqlite3.Error as error:
        connection.close()
        if is_damage(error):
            raise UnusableIndexError(str(error)) from error
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection | None:
    """Return a connection to the index, None if there is none that can be read.

    Another process may write to it at the same time. Only where the file system cannot be written
    to is it read as a file that does not change: SQLite then needs no lock and no side files.
    """
    if not is_regular(path):
        return None
    for how in ("mode=rw", "mode=ro&immutable=1"):
        if how != "mode=rw" and os.access(path.parent, os.W_OK):
            return None
        with suppress(sqlite3.Error):
            connection = _connect(path, how)
            with suppress(sqlite3.Error):
                if _version(connection) == (_APPLICATION_ID, SCHEMA_VERSION):
                    return connection
            connection.close()
    return None


def set_aside(path: Path) -> None:
    """Rename an unusable index, over the one that was set aside before, so that one can be made.

    Raises:
        OSError: It cannot be renamed.
    """
    path.replace(path.with_name(f"{path.name}.unusable"))


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error means that the file is damaged, not that it cannot be used now."""
    code = getattr(error, "sqlite_errorcode", None)  # none where the file was never opened
    return code is not None and (code in _DAMAGE or code & 0xFF in _DAMAGE)


def _connect(path: Path, how: str) -> sqlite3.Connection:
    # Calls of several threads are put in a row by `PageIndex`.
    return sqlite3.connect(
        f"{path.as_uri()}?{how}",
        uri=True,
        timeout=BUSY_TIMEOUT_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )


def _prepare(connection: sqlite3.Connection, fill: Callable[[sqlite3.Connection], None]) -> None:
    found = _version(connection)
    is_empty = found == (0, 0) and not _schema(connection)
    if not is_empty and found != (_APPLICATION_ID, SCHEMA_VERSION):
        raise UnusableIndexError(f"id and version are {found}")
    connection.execute("PRAGMA journal_mode = WAL")
    # Each commit is on the disk when it returns. NORMAL, which leaves that to the next checkpoint,
    # was rejected: files are unlinked after a commit, and a power cut could then bring back rows of
    # files that are gone and lose those that replaced them. Commits are few, one per batch of pages
    # that were synced themselves, and in the background.
    connection.execute("PRAGMA synchronous = FULL")
    if is_empty:
        _make(connection, fill)
        return
    if _schema(connection) != _STATEMENTS:
        raise UnusableIndexError("it has other tables")
    damage = connection.execute("PRAGMA quick_check(1)").fetchone()
    if damage != ("ok",):
        raise UnusableIndexError(str(damage[0]))


def _make(connection: sqlite3.Connection, fill: Callable[[sqlite3.Connection], None]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in _STATEMENTS:
        connection.execute(statement)
    fill(connection)
    # In the same transaction: a crash before its end leaves an empty file, which is filled again.
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def _schema(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")
    return [sql for (sql,) in rows]


def _version(connection: sqlite3.Connection) -> tuple[int, int]:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return application, version
