"""The `ellm` command with engines that take their time, for tests of Ctrl-C.

Usage: python -m tests.unit.cli.quality_driver DELAY_SECONDS ARGUMENTS...
"""

from __future__ import annotations

import sys

from ellm.cli.main import main

from .quality_fakes import FakeQualityBackend

if __name__ == "__main__":
    fake = FakeQualityBackend(delay_seconds=float(sys.argv[1]))
    fake.install(setattr)
    sys.exit(main(sys.argv[2:]))
