"""Files that belong to this user alone: no link is followed, nobody else can read or write them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

from ellm.errors import ConfigError

_OWNER_ONLY = 0o600
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def private_directory(path: Path) -> Path:
    """Return the real path of a directory that only this user can change; made when missing.

    A link to the directory is followed, once and here; links within it never are.

    Raises:
        ConfigError: It cannot be made, is of another user, or others can write to it: they could
            put files in the place of ours.
    """
    try:
        path = path.expanduser().resolve()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"the cache directory {path} cannot be made: {reason}; give another one"
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"the cache directory {path} is no directory; give another one")
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"the cache directory {path} belongs to user {found.st_uid}, this process runs as "
            f"{os.geteuid()}; give a directory of your own"
        )
    if found.st_mode & _WRITABLE_BY_OTHERS:
        raise ConfigError(
            f"the cache directory {path} has mode {stat.S_IMODE(found.st_mode):04o}, so others can "
            f"write to it, expected 0700; run: chmod 700 {path}"
        )
    return path


def open_private(path: Path, flags: int) -> int:
    """Return a descriptor of a regular file; a new one gets mode 0600 whatever the umask.

    Raises:
        OSError: As from `os.open`; ELOOP for a link, EINVAL for what is no regular file.
    """
    # O_NONBLOCK: opening a named pipe that was put there would wait for ever.
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, _OWNER_ONLY)
    try:
        _require_regular(descriptor, path)
        if flags & os.O_CREAT:
            os.fchmod(descriptor, _OWNER_ONLY)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_regular(path: Path) -> bool:
    """Return whether `path` itself, not what it links to, is a regular file."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def sync_directory(path: Path) -> None:
    """Wait until names that were made in a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class WriterLock:
    """The right to write to a directory, held by one process; the kernel ends it with the process.

    The file stays: a third process could lock a new one while a second waits on the old.
    """

    def __init__(self, descriptor: int) -> None:
        """Own a locked descriptor."""
        self._descriptor = descriptor

    @classmethod
    def try_acquire(cls, path: Path) -> WriterLock | None:
        """Return the lock, or None while another holds it.

        Raises:
            OSError: The file can be neither opened nor locked, as on a read-only file system.
        """
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            # Not lockf: its locks are lost when the process closes any descriptor of the file.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Let another process write."""
        os.close(self._descriptor)


def _require_regular(descriptor: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
