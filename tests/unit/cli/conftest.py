from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from ellm.cli.main import main

from .fakes import FakeBackend


@dataclass(frozen=True)
class Finished:
    status: int
    out: str
    err: str


Ellm = Callable[..., Finished]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    backend = FakeBackend()
    backend.install(monkeypatch.setattr)
    return backend


@pytest.fixture
def ellm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ellm:
    """Run `ellm` with arguments, and with bytes on standard input if there are any."""

    def run(*arguments: str, stdin: bytes | None = None) -> Finished:
        stream = io.TextIOWrapper(io.BytesIO(stdin or b""))
        monkeypatch.setattr(stream, "isatty", lambda: stdin is None)
        monkeypatch.setattr("sys.stdin", stream)
        status = main(list(arguments))
        captured = capsys.readouterr()
        return Finished(status, captured.out, captured.err)

    return run
