"""`ellm` with a fake chat model, for tests that need a process or a terminal of its own.

Usage: python -m tests.unit.cli.chat_driver WORDS DELAY_SECONDS ARGUMENTS...
"""

from __future__ import annotations

import sys

from ellm.cli.main import main

from .chat_fakes import FakeChatBackend

if __name__ == "__main__":
    words, delay_seconds = int(sys.argv[1]), float(sys.argv[2])
    fake = FakeChatBackend(
        answer=" ".join(["word"] * words), delay_seconds=delay_seconds, context_length=100_000
    )
    fake.install(setattr)
    sys.exit(main(sys.argv[3:]))
