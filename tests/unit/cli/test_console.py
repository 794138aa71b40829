from __future__ import annotations

import sys

import pytest

from ellm.cli import console as console_module
from ellm.cli.console import Console


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(console_module.time, "monotonic", lambda: now[0])
    return now


def test_elsewhere_than_on_a_terminal_slow_work_gets_a_line_per_tenth(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    line = Console().progress("reading")
    for done in range(0, 101):
        clock[0] = done / 10
        line.update(done, 100, "x")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 9
    assert lines[0] == "reading  21%  x"
    assert lines[-1] == "reading 100%  x"


def test_quick_work_gets_no_line(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    line = Console().progress("reading")
    for done in range(101):
        clock[0] = done / 100
        line.update(done, 100, "x")
    assert capsys.readouterr().err == ""


def test_a_terminal_is_redrawn_at_most_ten_times_a_second_and_cleared(
    clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    line = Console().progress("reading")
    for done in range(101):
        clock[0] = done / 100
        line.update(done, 100, "x")
    drawn = capsys.readouterr().err
    assert 9 <= drawn.count("\r\x1b[K") <= 12
    line.clear()
    line.clear()
    assert capsys.readouterr().err == "\r\x1b[K"


@pytest.mark.parametrize("options", [{"quiet": True}, {"as_json": True}])
def test_quiet_and_json_silence_notes_but_not_warnings(
    options: dict[str, bool], clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(**options)
    console.note("note")
    clock[0] = 10.0
    console.progress("p").update(1, 1, "x")
    console.warn("careful")
    assert capsys.readouterr().err == "ellm: careful\n"


def test_nothing_in_total_counts_as_done(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    line = Console().progress("p")
    clock[0] = 5.0
    line.update(0, 0, "x")
    assert capsys.readouterr().err == "p 100%  x\n"
