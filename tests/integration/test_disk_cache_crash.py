"""`kill -9` at random moments of writing: what was acknowledged is there, and nothing torn.

ELLM_CRASH_ROUNDS=200 python -m pytest -s tests/integration/test_disk_cache_crash.py
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from ellm.kv.disk.page_format import page_bytes
from tests.unit.kv.disk.blocks import all_found
from tests.unit.kv.disk.writing_process import MODES, Mode

ROUNDS = int(os.environ.get("ELLM_CRASH_ROUNDS", "24"))
# Plain rounds share a directory: what survived a kill has to survive the next ones too.
ROUNDS_PER_DIRECTORY = 16
# From before the writer has opened the cache to the middle of its work.
MAX_SECONDS_BEFORE_OPENING = 0.3
MAX_SECONDS_AFTER_OPENING = 0.4
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


@dataclass
class Figures:
    """What the kills met.

    Attributes:
        before_opening: Kills before the writer had opened the cache.
        amid_writing: Kills that left bytes of pages which no row names.
        unacknowledged: Blocks that were durable, and not yet said to be.
        acknowledged: Blocks that were said to be durable, by round.
    """

    before_opening: int = 0
    amid_writing: int = 0
    unacknowledged: int = 0
    acknowledged: list[int] = field(default_factory=list)


def test_what_was_acknowledged_survives_kills_and_nothing_is_torn(tmp_path: Path) -> None:
    choice = random.Random(6)
    figures = Figures()
    shared: dict[str, int] = {}
    for round_ in range(ROUNDS):
        name = f"round{round_}"
        if round_ % 2:
            mode, directory, counts = "rewriting", tmp_path / name, {}
        else:
            mode, directory, counts = "plain", tmp_path / "plain", shared
            if round_ % ROUNDS_PER_DIRECTORY == 0:
                shutil.rmtree(directory, ignore_errors=True)
                shared.clear()
        counts[name] = write_and_kill(directory, name, mode, choice)
        figures.before_opening += counts[name] < 0
        figures.acknowledged.append(max(0, counts[name]))
        require_whole(directory, MODES[mode], counts, figures)
    print(f"\n{ROUNDS} kills, {sum(figures.acknowledged)} blocks acknowledged: {figures}")
    # Else the kills come too early or too late to show anything.
    assert figures.amid_writing + figures.unacknowledged > 0
    assert sum(count > 0 for count in figures.acknowledged) > ROUNDS / 4


def write_and_kill(directory: Path, name: str, mode: str, choice: random.Random) -> int:
    """Return how many blocks of the sequence were acknowledged, -1 if it was not begun."""
    command = [sys.executable, "-m", "tests.unit.kv.disk.writing_process"]
    with subprocess.Popen(
        [*command, str(directory), name, mode], env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        lines = b""
        if choice.random() < 0.2:
            time.sleep(choice.uniform(0, MAX_SECONDS_BEFORE_OPENING))
        else:
            lines = writer.stdout.readline()
            time.sleep(choice.uniform(0, MAX_SECONDS_AFTER_OPENING))
        writer.send_signal(signal.SIGKILL)
        # A line that was cut off was not acknowledged.
        lines += writer.stdout.read()
    assert writer.returncode == -signal.SIGKILL
    return max((int(line) for line in lines.split(b"\n")[:-1]), default=-1)


def require_whole(directory: Path, mode: Mode, counts: dict[str, int], figures: Figures) -> None:
    before = {path: path.stat().st_size for path in directory.glob("segment-*.pages")}
    with mode.open(directory) as cache:
        assert cache.writable
        after = {path: path.stat().st_size for path in directory.glob("segment-*.pages")}
        # What no row names takes no room any more.
        assert all(size % page_bytes(mode.block_bytes) == 0 for size in after.values())
        figures.amid_writing += after != before
        for name, count in counts.items():
            blocks = mode.sequence(name, max(0, count) + 6)
            there = all_found(cache, blocks)  # compares the bytes of what is there
            assert all(there[: max(0, count)]), (name, count, there)
            figures.unacknowledged += sum(there[max(0, count) :])
        report = cache.verify()
        assert (report.good, report.bad) == (cache.pages, 0)
