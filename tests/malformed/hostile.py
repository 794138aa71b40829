"""What a hostile model file is, to the tests that open it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ellm.errors import EllmError, InvalidModelError


@dataclass(frozen=True)
class Hostile:
    """One way a model file can be wrong, and the error it must end in.

    `found` and `expected` are parts of the message; `write` makes the files in an empty directory
    and returns the path to open; `blamed` is the file the error names, if it is another one.
    """

    name: str
    write: Callable[[Path], Path]
    found: str
    expected: str
    offset: int | None
    error: type[EllmError] = InvalidModelError
    blamed: str = ""


def hostile_bytes(
    name: str,
    data: bytes,
    *,
    found: str,
    expected: str,
    offset: int | None,
    error: type[EllmError] = InvalidModelError,
) -> Hostile:
    """A single file with these bytes."""

    def write(directory: Path) -> Path:
        path = directory / "model.gguf"
        path.write_bytes(data)
        return path

    return Hostile(name, write, found, expected, offset, error)
