"""The thread that writes, so that no token waits for the disk."""

from __future__ import annotations

import threading

from ellm.kv.disk.page_index import Place
from ellm.kv.disk.page_writer import PageWriter, Put
from ellm.kv.disk.write_queue import WriteQueue


class BackgroundWriter:
    """Hands what is queued to a `PageWriter`.

    Attributes:
        pages: The writer, for work that its caller waits for.
        dropped: Blocks that were taken and not written: no room, or the disk failed.
    """

    def __init__(self, pages: PageWriter, *, queue_bytes: int) -> None:
        """Start the thread; `queue_bytes` bounds what waits."""
        self.pages = pages
        self.dropped = 0
        self._queue = WriteQueue(queue_bytes)
        # A daemon: a process that ends without `close` ends, as by `kill -9`, which loses only
        # what was not acknowledged.
        self._thread = threading.Thread(target=self._run, name="ellm-disk-cache", daemon=True)
        self._thread.start()

    def put(self, put: Put) -> bool:
        """Queue a block, or return False: the queue is full, or writing was turned off."""
        return self.pages.is_on and self._queue.offer(put)

    def note_used(self, key: bytes) -> None:
        """Have a page count as used."""
        self._queue.note_used(key)

    def note_bad(self, place: Place) -> None:
        """Have a damaged page removed."""
        self._queue.note_bad(place)

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until all that was queued is durable or dropped; return whether it is."""
        return self._queue.wait_written(timeout_seconds) and self.pages.is_on

    def close(self, timeout_seconds: float) -> None:
        """Write what is queued while there is time, then end the thread and free the directory."""
        self._queue.wait_written(timeout_seconds)
        self.dropped += self._queue.close()
        self._thread.join()
        self.pages.close()

    def _run(self) -> None:
        try:
            self.pages.check_index()
            while (batch := self._queue.take()) is not None:
                try:
                    self.pages.note(batch.used, batch.bad)
                    if batch.puts:
                        self.dropped += self.pages.write(batch.puts)
                finally:
                    self._queue.done(batch)
        finally:
            # Also when memory ran out here: nobody may wait for a thread that is gone.
            self.pages.is_on = False
            self._queue.close()
