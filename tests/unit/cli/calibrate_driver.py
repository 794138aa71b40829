"""The `ellm` command with steps that take their time, for tests of Ctrl-C.

Usage: python -m tests.unit.cli.calibrate_driver DELAY_SECONDS ARGUMENTS...
"""

from __future__ import annotations

import sys
import time
from typing import Any

from ellm.cli.main import main
from ellm.engine.replay import Replay

if __name__ == "__main__":
    delay_seconds, run = float(sys.argv[1]), Replay.run

    def slow_run(self: Replay, *arguments: Any) -> Any:
        time.sleep(delay_seconds)
        return run(self, *arguments)

    Replay.run = slow_run  # type: ignore[method-assign]
    sys.exit(main(sys.argv[2:]))
