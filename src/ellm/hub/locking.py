"""One download of a file at a time, also across processes."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_SECONDS = 0.1


@contextmanager
def exclusive(lock_file: Path, while_waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock file; the kernel frees it when the process ends, however it ends.

    The file itself stays: removing it would let a third process lock a new file of the same name
    while a second still waits on the old one.

    Args:
        lock_file: Created when missing.
        while_waiting: Called ten times a second while another process holds the lock.
    """
    with lock_file.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                while_waiting()
                time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
