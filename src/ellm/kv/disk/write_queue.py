"""What waits to be written: blocks up to a number of bytes, and notes about pages."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from ellm.kv.disk.page_index import Place
from ellm.kv.disk.page_writer import Put

# One `fdatasync` and one commit are shared by this much, and it is free again after them.
_BATCH_BYTES = 16 << 20
# Notes are no hurry: a crash loses which pages were used in this time, and nothing else.
_NOTES_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Batch:
    """What the writer does next.

    Attributes:
        puts: Blocks to write.
        used: Keys of pages that were read.
        bad: Places of pages that were found damaged.
    """

    puts: list[Put]
    used: set[bytes]
    bad: set[Place]


class WriteQueue:
    """Between askers, who never wait, and the one thread that writes."""

    def __init__(self, limit_bytes: int) -> None:
        """Hold blocks of at most `limit_bytes` together, those that are being written included."""
        self._limit_bytes = limit_bytes
        self._puts: deque[Put] = deque()
        self._keys: set[bytes] = set()
        self._bytes = 0
        self._used: set[bytes] = set()
        self._bad: set[Place] = set()
        self._busy = False
        self._closed = False
        self._changed = threading.Condition()

    def offer(self, put: Put) -> bool:
        """Take a block, or return False if there is no room for it."""
        with self._changed:
            if put.key in self._keys:
                return True
            if self._closed or self._bytes + len(put.payload) > self._limit_bytes:
                return False
            self._puts.append(put)
            self._keys.add(put.key)
            self._bytes += len(put.payload)
            self._changed.notify_all()
            return True

    def note_used(self, key: bytes) -> None:
        """Have it noted, some time, that a page was read."""
        with self._changed:
            self._used.add(key)

    def note_bad(self, place: Place) -> None:
        """Have a damaged page removed."""
        with self._changed:
            self._bad.add(place)
            self._changed.notify_all()

    def take(self) -> Batch | None:
        """Wait for something to do and return it; None once the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._puts or self._bad or self._closed, timeout=_NOTES_SECONDS
            )
            if self._closed and not (self._puts or self._bad or self._used):
                return None
            puts: list[Put] = []
            size = 0
            while self._puts and (not puts or size + len(self._puts[0].payload) <= _BATCH_BYTES):
                puts.append(self._puts.popleft())
                size += len(puts[-1].payload)
            batch = Batch(puts, self._used, self._bad)
            self._used, self._bad = set(), set()
            self._busy = True
            return batch

    def done(self, batch: Batch) -> None:
        """Have the room back that a batch took."""
        with self._changed:
            self._busy = False
            self._keys -= {put.key for put in batch.puts}
            self._bytes -= sum(len(put.payload) for put in batch.puts)
            self._changed.notify_all()

    def wait_written(self, timeout_seconds: float) -> bool:
        """Wait until no block and no damaged page is left; return whether that came in time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._keys or self._bad or self._busy), timeout=timeout_seconds
            )

    def close(self) -> int:
        """Take nothing more and forget the blocks that wait; return how many these were."""
        with self._changed:
            self._closed = True
            waiting = list(self._puts)
            self._puts.clear()
            self._keys -= {put.key for put in waiting}
            self._bytes -= sum(len(put.payload) for put in waiting)
            self._changed.notify_all()
            return len(waiting)
