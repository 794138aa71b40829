"""The `ellm` command with a fake model, for tests that need a process of its own.

Usage: python -m tests.unit.cli.driver WORDS DELAY_SECONDS ARGUMENTS...
"""

from __future__ import annotations

import sys

from ellm.cli.main import main

from .fakes import FakeBackend

if __name__ == "__main__":
    words, delay_seconds = int(sys.argv[1]), float(sys.argv[2])
    fake = FakeBackend(answer=" ".join(["word"] * words), delay_seconds=delay_seconds)
    fake.install(setattr)
    sys.exit(main(sys.argv[3:]))
