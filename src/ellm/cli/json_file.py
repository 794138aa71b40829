"""A file, of JSON or other text, that is there as a whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ellm.errors import ConfigError

STANDARD_OUTPUT = "-"
ANOTHER_OR_STANDARD_OUTPUT = "name another file, or - for standard output"
ANOTHER_FILE = "name another file"


def file_of(option: str | None) -> Path | None:
    """Return the file that `--json` names, if it names one."""
    return None if option in (None, STANDARD_OUTPUT) else Path(option)


def require_writable(path: Path, *, advice: str = ANOTHER_OR_STANDARD_OUTPUT) -> None:
    """Find out now whether the file can be written later; leaves nothing behind.

    Raises:
        ConfigError: It cannot; the message ends with the advice.
    """
    with _refusing(path, advice):
        if path.exists() and not os.access(path, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        if not _is_special(path):
            part = _part_of(path)
            part.touch()
            part.unlink()


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write an object, in place of what was there.

    Raises:
        ConfigError: It cannot be written; a file that was there is unchanged.
    """
    write_whole(path, json.dumps(values, ensure_ascii=False, indent=2) + "\n")


def write_whole(path: Path, text: str, *, advice: str = ANOTHER_OR_STANDARD_OUTPUT) -> None:
    """Write a text, in place of what was there.

    Raises:
        ConfigError: It cannot be written; a file that was there is unchanged.
    """
    with _refusing(path, advice):
        if _is_special(path):
            path.write_text(text, encoding="utf-8")
            return
        part = _part_of(path)
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path.resolve())
        finally:
            part.unlink(missing_ok=True)


def _is_special(path: Path) -> bool:
    """Return whether it is a device or a pipe, which a file must not be renamed over."""
    if path.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    return path.exists() and not path.is_file()


def _part_of(path: Path) -> Path:
    # Beside what a link leads to: a name can only be moved within one file system.
    return path.resolve().with_name(f".ellm-{os.getpid()}.part")


@contextmanager
def _refusing(path: Path, advice: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot write {path}: {reason}; {advice}") from error
