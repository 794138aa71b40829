"""How a download tells what it has done."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in total); the first may fall when a source is given up."""

_CHUNK_BYTES = 1 << 22


def ignore_progress(_done_bytes: int, _total_bytes: int) -> None:
    """Report to nobody."""


def sha256_of(path: Path, progress: Progress = ignore_progress) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    total, done = path.stat().st_size, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress(done, total)
    return digest.hexdigest()
