"""Writes the seeds of the GGUF fuzz target: every hostile file, and valid ones of each shape."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path

from tests.malformed import hostile_headers, hostile_tensors
from tests.malformed.hostile_files import shard
from tests.support.gguf_builder import TENSOR_TYPES, GgufBuilder
from tests.support.tiny_gguf import add_tokenizer

MAX_SEED_BYTES = 16384  # run.sh's -max_len


def valid_files() -> Iterator[bytes]:
    yield GgufBuilder().build()
    for version in (2, 3):
        builder = GgufBuilder(version=version, alignment=64)
        for name, (_, elements, block_bytes) in TENSOR_TYPES.items():
            builder.tensor(f"t.{name}", name, (1, elements), bytes(block_bytes))
        yield builder.build()
    yield add_tokenizer(GgufBuilder()).build()
    # Two files end to end are two shards to the fuzz target.
    yield shard(0, 2, 3, "a").build() + shard(1, 2, 3, "b", "c", architecture=None).build()
    yield shard(0, 2, 2, "a").build() + shard(1, 2, 2, "a").build()
    yield shard(0, 2, 2, "a").build() + shard(0, 2, 2, "b").build()


def hostile_files() -> Iterator[bytes]:
    for case in [*hostile_headers.CASES, *hostile_tensors.CASES]:
        with tempfile.TemporaryDirectory() as directory:
            path = case.write(Path(directory))
            if path.stat().st_size <= MAX_SEED_BYTES:
                yield path.read_bytes()


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for data in (*valid_files(), *hostile_files()):
        # Named by content, as libFuzzer does.
        name = sha1(data, usedforsecurity=False).hexdigest()
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
