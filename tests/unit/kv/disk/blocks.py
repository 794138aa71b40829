"""Blocks whose bytes follow from their key, so that every reader knows what is right."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ellm.kv.disk.disk_cache import DiskCache
from ellm.kv.disk.page_format import page_bytes

FINGERPRINT = bytes(range(32))
OTHER_FINGERPRINT = bytes(range(1, 33))
BLOCK_BYTES = 64
PAGE_BYTES = page_bytes(BLOCK_BYTES)
# Memory, where the system has a file system of it: for tests that wait for the disk all the time.
FAST_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None
AMPLE_BYTES = 1000 * PAGE_BYTES


@dataclass(frozen=True)
class Block:
    key: bytes
    parent: bytes | None
    tokens: NDArray[np.int32]
    payload: NDArray[np.uint8]


def block(name: str, parent: Block | None = None, *, nbytes: int = BLOCK_BYTES) -> Block:
    key = hashlib.blake2b(name.encode(), digest_size=32).digest()
    rng = np.random.default_rng(np.frombuffer(key, dtype=np.uint32))
    tokens = rng.integers(0, 2**31, 64, dtype=np.int32)
    payload = rng.integers(0, 256, nbytes, dtype=np.uint8)
    return Block(key, parent.key if parent else None, tokens, payload)


def chain(name: str, length: int, *, nbytes: int = BLOCK_BYTES) -> list[Block]:
    blocks: list[Block] = []
    for index in range(length):
        blocks.append(block(f"{name}/{index}", blocks[-1] if blocks else None, nbytes=nbytes))
    return blocks


def open_cache(
    directory: Path,
    *,
    fingerprint: bytes = FINGERPRINT,
    block_bytes: int = BLOCK_BYTES,
    quota_bytes: int = AMPLE_BYTES,
    read_only: bool = False,
) -> DiskCache:
    return DiskCache.open(
        directory,
        fingerprint=fingerprint,
        block_bytes=block_bytes,
        quota_bytes=quota_bytes,
        read_only=read_only,
    )


def put(cache: DiskCache, *blocks: Block) -> None:
    """Put blocks and wait until they are durable, or dropped for want of room."""
    for each in blocks:
        assert cache.put(each.key, each.parent, each.tokens, each.payload)
    assert cache.flush(60)


def found(cache: DiskCache, wanted: Block) -> bool:
    """Return whether a block is there; if so it has the right bytes."""
    out = np.zeros(wanted.payload.size, dtype=np.uint8)
    if not cache.read(wanted.key, wanted.tokens, out):
        return False
    np.testing.assert_array_equal(out, wanted.payload)
    return True


def all_found(cache: DiskCache, blocks: Sequence[Block]) -> list[bool]:
    return [found(cache, each) for each in blocks]


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("segment-*.pages"))


def fill(directory: Path, blocks: Sequence[Block], *, quota_bytes: int = AMPLE_BYTES) -> None:
    """Write blocks to a directory that is closed again."""
    with open_cache(directory, quota_bytes=quota_bytes) as cache:
        put(cache, *blocks)
