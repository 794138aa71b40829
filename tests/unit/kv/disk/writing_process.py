"""A process that writes to a disk cache until it is killed; tests start it.

Usage: python -m tests.unit.kv.disk.writing_process DIRECTORY NAME MODE

It puts the blocks of sequence NAME, and prints how many are durable each time it knows of more:
`plain` only that, in large blocks; `rewriting` puts small ones with others beside them that nobody
wants, and has these evicted, so that segments are rewritten all the time. `overflowing` puts
sequences without end.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ellm.kv.disk.disk_cache import DiskCache
from ellm.kv.disk.page_format import page_bytes
from tests.unit.kv.disk.blocks import Block, all_found, block, chain, open_cache, put

OVERFLOWING_SEQUENCES = 12
# With this many blocks there is enough beside them for a rewrite; before, nothing is told.
FIRST_REWRITTEN = 8


@dataclass(frozen=True)
class Mode:
    """How a process writes.

    Attributes:
        block_bytes: Size of a block.
        quota_pages: Room; for all that is wanted, but for `overflowing`.
        max_blocks: Length of a sequence.
    """

    block_bytes: int
    quota_pages: int
    max_blocks: int

    @property
    def quota_bytes(self) -> int:
        return self.quota_pages * page_bytes(self.block_bytes)

    def open(self, directory: Path) -> DiskCache:
        return open_cache(directory, block_bytes=self.block_bytes, quota_bytes=self.quota_bytes)

    def sequence(self, name: str, length: int) -> list[Block]:
        return chain(name, length, nbytes=self.block_bytes)


MODES = {
    "plain": Mode(block_bytes=65_000, quota_pages=4000, max_blocks=300),
    # 16 pages a segment.
    "rewriting": Mode(block_bytes=3000, quota_pages=128, max_blocks=40),
    "overflowing": Mode(block_bytes=12_000, quota_pages=40, max_blocks=6),
}


def main(directory: Path, name: str, mode: Mode) -> None:
    blocks = mode.sequence(name, mode.max_blocks)
    with mode.open(directory) as cache:
        assert cache.writable
        if mode is not MODES["rewriting"]:
            print(0, flush=True)
        if mode is MODES["plain"]:
            put_plainly(cache, blocks)
        elif mode is MODES["rewriting"]:
            put_and_rewrite(cache, blocks)
        else:
            for round_ in range(10**9):
                put(cache, *mode.sequence(f"{round_ % OVERFLOWING_SEQUENCES}", mode.max_blocks))
        time.sleep(60)


def put_plainly(cache: DiskCache, blocks: list[Block]) -> None:
    for count in range(6, len(blocks) + 1, 6):
        put(cache, *blocks[count - 6 : count])
        print(count, flush=True)


def put_and_rewrite(cache: DiskCache, blocks: list[Block]) -> None:
    nbytes = blocks[0].payload.size
    for count, wanted in enumerate(blocks, start=1):
        put(cache, wanted)
        if count >= FIRST_REWRITTEN:
            print(count, flush=True)
        put(cache, *(block(f"unwanted/{count}/{index}", nbytes=nbytes) for index in range(4)))
        if count % 2 == 0 and count >= FIRST_REWRITTEN:
            # What is wanted is noted as used before the last is put, so the others go first. A
            # segment is rewritten when half of it is dead: twice what is wanted fits in any case.
            assert all(all_found(cache, blocks[:count]))
            put(cache, block(f"unwanted/{count}/last", nbytes=nbytes))
            cache.prune((2 * count + 16) * page_bytes(nbytes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], MODES[sys.argv[3]])
