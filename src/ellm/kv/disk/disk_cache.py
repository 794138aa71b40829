"""The door of the disk tier: KV blocks by key, for the askers of one model."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ellm.errors import ConfigError
from ellm.kv.disk.background_writer import BackgroundWriter
from ellm.kv.disk.index_file import INDEX_NAME
from ellm.kv.disk.lookup import Lookup
from ellm.kv.disk.page_format import (
    FINGERPRINT_BYTES,
    KEY_BYTES,
    NO_PARENT,
    PageHeader,
    Tokens,
    pack_tokens,
)
from ellm.kv.disk.page_index import Holding, Model, Place
from ellm.kv.disk.page_writer import Put
from ellm.kv.disk.private_files import private_directory
from ellm.kv.disk.recovery import UnwritableError, become_writer
from ellm.kv.disk.segments import Segments
from ellm.kv.disk.verification import Progress, VerifyReport, find_bad_pages

_LOGGER = logging.getLogger(__name__)

# Blocks that wait for the disk. A prompt's come by 1 to 20 MB/s, disks write 100 and more.
DEFAULT_QUEUE_BYTES = 64 << 20
CLOSE_SECONDS = 30.0

# How often one who could not write asks whether the writer has ended.
_RETRY_SECONDS = 2.0
# A page that is moved while it is looked for has another place by the next question.
_READ_ATTEMPTS = 4
# The machine is short of something: says nothing about the page.
_PASSING_ERRORS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR}


class DiskCache:
    """Blocks of one model in a directory that all models and processes of a user share.

    Whatever happens to the directory, a block is either given back as it was put or not at all, and
    no method but `open`, `prune` and `clear` raises for it. Methods may be called from any thread;
    `read` does not hold the GIL while it reads and checks, so several can run at once.

    A block is durable, also against `kill -9` and power cuts, when a `flush` after its `put` has
    returned True. One process writes; others read, and the first to `put` after the writer has
    ended takes its place. The quota counts the page files; the index adds less than a thousandth.

    Attributes:
        directory: The real path.
        hits: Reads that found their block.
        misses: Reads that did not.
    """

    def __init__(
        self, directory: Path, *, model: Model, quota_bytes: int, queue_bytes: int, read_only: bool
    ) -> None:
        """Use `open`, which checks the directory first."""
        self.directory = directory
        self.hits = 0
        self.misses = 0
        self._model = model
        self._quota_bytes = quota_bytes
        self._queue_bytes = queue_bytes
        self._read_only = read_only
        self._segments = Segments(directory)
        self._lookup = Lookup(directory / INDEX_NAME)
        self._lock = threading.Lock()
        self._dropped = 0
        self._retry_at = 0.0
        self._closed = False
        self._writer: BackgroundWriter | None = None
        self._writing()

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        fingerprint: bytes,
        block_bytes: int,
        quota_bytes: int,
        queue_bytes: int = DEFAULT_QUEUE_BYTES,
        read_only: bool = False,
    ) -> Self:
        """Open the cache in `directory`, which is made with mode 0700 when missing.

        Args:
            directory: Where the files are; other files in it are left alone.
            fingerprint: Of all that a block's bytes depend on besides its tokens, 32 bytes: model
                file, KV type, RoPE settings, version of the block's layout.
            block_bytes: Bytes of a block.
            quota_bytes: What the pages of all models may take together; counts when a page is
                written, so opening with a smaller one deletes nothing.
            queue_bytes: Memory for blocks that wait to be written.
            read_only: Leave the right to write to others.

        Raises:
            ConfigError: The directory cannot be made, is another user's, or others can write to it.
            ValueError: A size or length cannot be: a bug of the caller.
        """
        if len(fingerprint) != FINGERPRINT_BYTES:
            raise ValueError(f"a fingerprint has {FINGERPRINT_BYTES} bytes, not {len(fingerprint)}")
        if block_bytes < 1 or quota_bytes < 0 or queue_bytes < 0:
            raise ValueError(f"sizes are {block_bytes}, {quota_bytes} and {queue_bytes} bytes")
        return cls(
            private_directory(directory),
            model=Model(fingerprint, block_bytes),
            quota_bytes=quota_bytes,
            queue_bytes=queue_bytes,
            read_only=read_only,
        )

    @property
    def writable(self) -> bool:
        """Whether blocks can be put now; not so beside another writer or after a disk error."""
        writer = self._writer
        return writer is not None and writer.pages.is_on

    @property
    def dropped_puts(self) -> int:
        """Blocks that were put and not written: no room, full queue, no writer, failing disk."""
        return self._dropped + (0 if self._writer is None else self._writer.dropped)

    @property
    def bytes_used(self) -> int:
        """Bytes of the page files of all models, dead pages included; 0 if nobody can tell."""
        try:
            return self._segments.bytes_used()
        except OSError:
            return 0

    @property
    def pages(self) -> int:
        """Pages of all models."""
        return self._lookup.count()

    def holdings(self) -> list[Holding]:
        """Return what there is of each model, the one used last first."""
        return self._lookup.holdings()

    def present(self, keys: Sequence[bytes]) -> int:
        """Return how many of the leading `keys` have a page, by one question per 512 keys.

        A page that is there may still be gone or found damaged when it is read.
        """
        self._segments.forget_unlinked()
        return len(self._lookup.places(self._model, keys))

    def read(self, key: bytes, tokens: Tokens, out: NDArray[np.uint8]) -> bool:
        """Copy a block into `out` and return whether it was there, whole and of these tokens.

        A page that is anything else is dropped.

        Args:
            key: Of the block.
            tokens: Its tokens, int32 (64,).
            out: uint8 (block_bytes,), contiguous; holds nothing of use if False is returned.

        Raises:
            ValueError: A key, tokens or `out` of another shape or type: a bug of the caller.
        """
        _check_key(key)
        self._check_payload(out)
        expected = pack_tokens(tokens)
        found = self._find(key, expected, out)
        with self._lock:
            self.hits += found
            self.misses += not found
        writer = self._writer
        if found and writer is not None:
            writer.note_used(key)
        return found

    def put(
        self, key: bytes, parent: bytes | None, tokens: Tokens, payload: NDArray[np.uint8]
    ) -> bool:
        """Queue a block to be written, without waiting, and return whether it was taken.

        Args:
            key: Of the block.
            parent: Key of the block before it, None for the first of a sequence.
            tokens: Its tokens, int32 (64,).
            payload: The block, uint8 (block_bytes,); copied.

        Raises:
            ValueError: A key, tokens or block of another shape or type: a bug of the caller.
        """
        _check_key(key)
        _check_key(NO_PARENT if parent is None else parent)
        self._check_payload(payload)
        packed = pack_tokens(tokens)
        writer = self._writing()
        taken = writer is not None and writer.put(
            Put(key, parent or NO_PARENT, packed, payload.tobytes())
        )
        if not taken:
            with self._lock:
                self._dropped += 1
        return taken

    def flush(self, timeout_seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until all blocks put before are durable, or dropped for want of room.

        Returns:
            Whether they are: False after the time, where nothing can be written, or after an error.
        """
        writer = self._writer
        return writer is not None and writer.flush(timeout_seconds)

    def prune(self, target_bytes: int) -> int:
        """Evict pages until the files take at most `target_bytes`; return the bytes given back.

        The pages that were not used for longest go first, the end of a sequence before its
        beginning. A few pages that share a file with ones that stay may have to go too.

        Raises:
            ConfigError: This process cannot write to the cache.
        """
        return self._give_back(lambda writer: writer.pages.shrink(target_bytes))

    def clear(self) -> int:
        """Delete the pages of all models; return the bytes given back.

        Raises:
            ConfigError: This process cannot write to the cache.
        """
        return self._give_back(lambda writer: writer.pages.clear())

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Check every page of every model; those that are bad are dropped.

        Args:
            progress: Called with the bytes done and the bytes in all after each page.
        """
        report, bad = find_bad_pages(self._lookup, self._segments, progress)
        for place in bad:
            self._drop(place)
        return report

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Write what is queued while there is time, and let another process write."""
        with self._lock:
            self._closed = True
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.close(timeout_seconds)
            self._dropped += writer.dropped
        self._lookup.close()
        self._segments.close()

    def __enter__(self) -> Self:
        """Return the cache."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the cache."""
        self.close()

    def _find(self, key: bytes, tokens: bytes, out: NDArray[np.uint8]) -> bool:
        tried: Place | None = None
        for _ in range(_READ_ATTEMPTS):
            places = self._lookup.places(self._model, [key])
            if not places:
                return False
            if places[0] == tried:
                self._drop(tried)
                return False
            tried = places[0]
            try:
                header = self._segments.get(tried.segment).read(tried.offset, out)
            except (OSError, OverflowError) as error:  # an offset that no file can have
                if isinstance(error, OSError) and error.errno in _PASSING_ERRORS:
                    return False
                header = None
            if header is not None and self._is_wanted(header, key, tokens):
                return True
        return False

    def _is_wanted(self, header: PageHeader, key: bytes, tokens: bytes) -> bool:
        found = header.fingerprint, header.key, header.tokens
        return found == (self._model.fingerprint, key, tokens)

    def _drop(self, place: Place) -> None:
        self._lookup.mark_bad(place)
        writer = self._writer
        if writer is not None:
            writer.note_bad(place)

    def _give_back(self, work: Callable[[BackgroundWriter], None]) -> int:
        writer = self._writing()
        if writer is None or not writer.pages.is_on:
            raise ConfigError(
                f"the cache {self.directory} cannot be changed: another process writes to it, or "
                "the disk cannot be written to; end the other process or look at the log"
            )
        before = self.bytes_used
        work(writer)
        return max(0, before - self.bytes_used)

    def _writing(self) -> BackgroundWriter | None:
        """Return the writer; becomes it where there is none any more, asked now and then."""
        if self._writer is not None or self._read_only:
            return self._writer
        with self._lock:
            if self._writer is None and not self._closed and time.monotonic() >= self._retry_at:
                self._retry_at = time.monotonic() + _RETRY_SECONDS
                self._writer = self._become_writer()
            return self._writer

    def _become_writer(self) -> BackgroundWriter | None:
        try:
            pages = become_writer(self._segments, model=self._model, quota_bytes=self._quota_bytes)
        except UnwritableError as error:
            self._read_only = True
            _LOGGER.warning("the disk cache %s is only read: %s", self.directory, error)
            return None
        return None if pages is None else BackgroundWriter(pages, queue_bytes=self._queue_bytes)

    def _check_payload(self, payload: NDArray[np.uint8]) -> None:
        expected = (self._model.block_bytes,)
        if payload.dtype != np.uint8 or payload.shape != expected or not payload.flags.c_contiguous:
            raise ValueError(
                f"a block is contiguous uint8 {expected}, found {payload.dtype} {payload.shape}"
            )


def _check_key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
