"""The secret of this installation, from which keys of KV blocks are derived: 32 bytes in a file."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import tempfile
from pathlib import Path

from ellm.errors import ConfigError

SECRET_BYTES = 32
SECRET_NAME = "secret"

# There is no such file, it is a symlink, it may not be read, it is a socket: a new one takes its
# place. Anything else (too many open files, a failing disk) may pass, and would cost the cache.
_REPLACED = {errno.ENOENT, errno.ELOOP, errno.EACCES, errno.ENXIO}


def load_secret(directory: Path) -> bytes:
    """Return the 32 bytes of this installation's secret, made by the first call in `directory`.

    A file that is damaged, a symlink or open to other users is replaced: what was stored under the
    old secret is then not found any more, which costs time and is never wrong. Processes that start
    at once agree on one secret.

    Raises:
        ConfigError: The directory or the file can be neither read nor made.
    """
    path = directory / SECRET_NAME
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = _read(path) or _create(path)
    except OSError as error:
        raise ConfigError(
            f"the cache's secret {path} can be neither read nor made: {error.strerror}; "
            "give another cache directory, or none"
        ) from error
    if found is None:
        raise ConfigError(
            f"the cache's secret {path} is unreadable right after it was made; "
            "give a cache directory that no other program writes to, or none"
        )
    return found


def _read(path: Path) -> bytes | None:
    """Return the secret, or None if there is none that can be used."""
    try:
        # O_NONBLOCK: a named pipe put there must not make the start hang.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _REPLACED:
            return None
        raise
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
            return None
        content = file.read(SECRET_BYTES + 1)
    # Zeros are what a lost write leaves behind, and everybody could guess them.
    return content if len(content) == SECRET_BYTES and any(content) else None


def _create(path: Path) -> bytes | None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")  # 0600
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(descriptor)
        try:
            # Unlike a rename, a link leaves alone what another process put there meanwhile.
            path.hardlink_to(fresh)
        except OSError:  # something is there, or the file system has no links
            if _read(path) is None:
                fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return _read(path)
