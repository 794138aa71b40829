"""Set-up of every test run."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let Ctrl-C work where the tests were started in the background.

    A shell has such jobs ignore SIGINT, and they and their children would pass that on.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
