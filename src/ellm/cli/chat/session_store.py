"""The directory of kept conversations: names, locks, and what can be done with a whole session."""

from __future__ import annotations

import os
import re
import stat
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from ellm.cli.chat.session_file import (
    InvalidSessionError,
    Session,
    read_session,
    write_session,
)
from ellm.errors import ConfigError, EllmError, RequestError
from ellm.kv.disk.private_files import WriterLock, sync_directory

# No separator, no hidden file, nothing that looks like an option.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SUFFIX = ".json"


class OpenSession:
    """A session that this process alone may write.

    Attributes:
        name: Its name.
        path: Its file, which need not be there yet.
        found: What the file held when it was opened.
    """

    def __init__(self, name: str, path: Path, lock: WriterLock, found: Session | None) -> None:
        """Own the lock of a session."""
        self.name = name
        self.path = path
        self.found = found
        self._lock: WriterLock | None = lock

    def write(self, session: Session) -> None:
        """Write the session.

        Raises:
            EllmError: It cannot be written; the file is unchanged.
        """
        write_session(self.path, session)

    def close(self) -> None:
        """Let another process write it."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def __enter__(self) -> Self:
        """Return the session itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session."""
        self.close()


class SessionStore:
    """Sessions in one directory, a file each."""

    def __init__(self, directory: Path) -> None:
        """Use `directory`, which is made with mode 0700 when a session is first opened."""
        self.directory = directory

    @classmethod
    def default(cls) -> Self:
        """Return the sessions of this user.

        Source: XDG Base Directory Specification; a relative path in XDG_DATA_HOME does not count.
        """
        named = Path(os.environ.get("XDG_DATA_HOME", ""))
        base = named if named.is_absolute() else Path.home() / ".local" / "share"
        return cls(base / "ellm" / "sessions")

    def path(self, name: str) -> Path:
        """Return the file of a session.

        Raises:
            ConfigError: That is no name of a session.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name[:80]!r} is no name of a session: up to 64 letters, digits, '.', '_' and "
                "'-', the first a letter or digit"
            )
        return self.directory / f"{name}{_SUFFIX}"

    def names(self) -> list[str]:
        """Return the names of all sessions, sorted."""
        if not self.directory.is_dir():
            return []
        return sorted(
            path.name.removesuffix(_SUFFIX)
            for path in self.directory.iterdir()
            if path.suffix == _SUFFIX and _NAME.fullmatch(path.name.removesuffix(_SUFFIX))
        )

    def read(self, name: str) -> Session:
        """Return a session; another process may be writing it.

        Raises:
            RequestError: There is none of that name.
            InvalidSessionError: Its file is damaged.
        """
        session = read_session(self.path(name))
        if session is None:
            known = ", ".join(self.names()[:8])
            raise RequestError(
                f"there is no session {name!r} in {self.directory}"
                + (f"; there are {known}" if known else "")
            )
        return session

    def open(self, name: str) -> OpenSession:
        """Return a session, there or not, that this process alone may write until it is closed.

        Raises:
            ConfigError: That is no name, or the directory cannot be used.
            RequestError: Another process has opened it.
            InvalidSessionError: Its file is damaged.
        """
        path = self.path(name)
        self._prepare()
        try:
            lock = WriterLock.try_acquire(self.directory / f".{name}.lock")
        except OSError as error:
            raise ConfigError(f"the session {path} cannot be opened: {error.strerror}") from error
        if lock is None:
            raise RequestError(
                f"the session {name!r} is open in another process; end that, or go on in a copy: "
                f"ellm sessions fork {name} NEW"
            )
        try:
            return OpenSession(name, path, lock, read_session(path))
        except BaseException:
            lock.release()
            raise

    def create(self, name: str) -> OpenSession:
        """Return a session that was not there before, as `open` does.

        Raises:
            RequestError: There is one of that name.
        """
        opened = self.open(name)
        if opened.found is not None:
            opened.close()
            raise RequestError(f"there is a session {name!r} already; choose another name")
        return opened

    def fork(self, name: str, new: str) -> None:
        """Copy a session to a name that is not taken.

        Raises:
            EllmError: There is no session to copy, the name is taken, or it cannot be written.
        """
        session = self.read(name)
        with self.create(new) as opened:
            now = time.time()
            opened.write(replace(session, created_seconds=now, used_seconds=now))

    def delete(self, name: str) -> None:
        """Delete a session, damaged or not.

        Raises:
            RequestError: There is none of that name, or another process has opened it.
            EllmError: It cannot be deleted.
        """
        path = self.path(name)
        if not os.path.lexists(path):
            self.read(name)
        try:
            with self.open(name):
                path.unlink()
        except InvalidSessionError:
            path.unlink()
        except OSError as error:
            raise EllmError(f"{path} cannot be deleted: {error.strerror}") from error
        sync_directory(self.directory)

    def _prepare(self) -> None:
        """Make the directory; others must not be able to change what is in it."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.directory.stat()
        except OSError as error:
            raise ConfigError(
                f"the directory of sessions {self.directory} cannot be made: {error.strerror}; "
                "XDG_DATA_HOME names another place"
            ) from error
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError(
                f"others can write to the directory of sessions {self.directory}, expected one "
                f"of your own with mode 0700; run: chmod 700 {self.directory}"
            )
