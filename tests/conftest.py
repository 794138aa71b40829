"""Set-up of every test run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest


def pytest_configure() -> None:
    """Let Ctrl-C work where the tests were started in the background.

    A shell has such jobs ignore SIGINT, and they and their children would pass that on.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_kv_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what commands read out of the user's cache, and of other tests' results."""
    monkeypatch.setenv("ELLM_KV_CACHE", str(tmp_path_factory.mktemp("kv")))


@pytest.fixture(autouse=True)
def no_writers_left() -> Iterator[None]:
    """Every disk cache is closed: a thread that is left makes a failing command leave at once."""
    yield
    assert [t.name for t in threading.enumerate() if t.name == "ellm-disk-cache"] == []
