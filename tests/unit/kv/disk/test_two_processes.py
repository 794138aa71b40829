"""One process writes, evicts and rewrites without pause; another reads right bytes or none."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ellm.kv.disk import disk_cache

from .blocks import block, found, put
from .writing_process import MODES, OVERFLOWING_SEQUENCES

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
SECONDS = 3.0


def test_a_reader_beside_a_busy_writer_gets_right_bytes_and_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "_RETRY_SECONDS", 0.0)
    command = [sys.executable, "-m", "tests.unit.kv.disk.writing_process"]
    with subprocess.Popen(
        [*command, str(tmp_path), "unused", "overflowing"],
        env=ENVIRONMENT,
        cwd=Path(__file__).parents[4],
        stdout=subprocess.PIPE,
    ) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"0\n"
            read_beside(tmp_path, writer)
        finally:
            writer.kill()


def read_beside(directory: Path, writer: subprocess.Popen[bytes]) -> None:
    mode = MODES["overflowing"]
    paths = [mode.sequence(f"{number}", mode.max_blocks) for number in range(OVERFLOWING_SEQUENCES)]
    choice = random.Random(1)
    with mode.open(directory) as reader:
        first = paths[0][0]
        assert not reader.writable
        assert not reader.put(first.key, first.parent, first.tokens, first.payload)
        segments: set[str] = set()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or reader.hits < 20 or len(segments) < 20:
            path = choice.choice(paths)
            present = reader.present([each.key for each in path])
            for each in path[: present + 1]:
                found(reader, each)  # compares the bytes of what is there
            segments |= {path.name for path in directory.glob("segment-*")}
            assert reader.bytes_used <= mode.quota_bytes
            assert writer.poll() is None
            assert time.monotonic() < end + 60
        writer.kill()
        writer.wait()
        after = block("after", nbytes=mode.block_bytes)
        put(reader, after)
        assert reader.writable
        assert found(reader, after)
        assert reader.verify().bad == 0
