"""What only a terminal shows: keys, pastes, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from ellm.cli.chat.session_store import SessionStore
from ellm.cli.chat.terminal import TerminalInput, history_file

from .test_process import ENVIRONMENT

PASTE, PASTED = "\x1b[200~", "\x1b[201~"
ALT_ENTER = "\x1b\r"


def typed(keys: str, *, history: Path | None = None, notes: list[str] | None = None) -> list[str]:
    """Return the messages that keys make, until Ctrl-D."""
    told = [] if notes is None else notes
    with create_pipe_input() as pipe:
        pipe.send_text(f"{keys}\x04")
        source = TerminalInput(told.append, history=history, keys=pipe, screen=DummyOutput())
        found = []
        while (message := source.read()) is not None:
            found.append(message)
    return found


@pytest.mark.parametrize(
    ("keys", "messages"),
    [
        ("one\rtwo\r", ["one", "two"]),
        (f"a{ALT_ENTER}b\r", ["a\nb"]),
        (f"{PASTE}a\nb\r\nc{PASTED}d\r", ["a\nb\ncd"]),
        ('"""a\r  b\r"""\rc\r', ['"""a\n  b\n"""', "c"]),
        ('"""a"""\r', ['"""a"""']),
    ],
)
def test_enter_sends_and_pastes_and_quotes_keep_their_lines(keys: str, messages: list[str]) -> None:
    assert typed(keys) == messages


def test_ctrl_c_forgets_what_was_typed_and_goes_on() -> None:
    notes: list[str] = []
    assert typed("half\x03one\r\x03", notes=notes) == ["one"]
    assert notes == ["Ctrl-D or /exit leaves"] * 2


def test_history_is_kept_for_its_owner_alone_and_without_pasted_texts(tmp_path: Path) -> None:
    history = tmp_path / "ellm" / "history"
    before = os.umask(0)
    try:
        typed(f"{'x' * 20_000}\rone\r", history=history)
    finally:
        os.umask(before)
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert history.stat().st_size < 1000
    assert list(FileHistory(str(history)).load_history_strings()) == ["one"]


def test_a_history_that_cannot_be_kept_is_told(tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert typed("one\r", history=tmp_path / "link", notes=notes) == ["one"]
    assert notes[0].startswith("what is typed is not kept: ")
    assert (tmp_path / "elsewhere").read_text() == "mine"


def test_history_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert history_file() == Path("/state/ellm/chat-history")
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    assert history_file() == Path.home() / ".local" / "state" / "ellm" / "chat-history"


class Terminal:
    """A chat with a fake model in a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], parent: int) -> None:
        self.process = process
        self.shown = b""
        self._parent = parent
        self._seen = 0

    def press(self, keys: str) -> None:
        os.write(self._parent, keys.encode())

    def wait_for(self, text: str, seconds: float = 30) -> None:
        """Read until `text` is shown behind what was waited for before."""
        end = time.monotonic() + seconds
        while (at := self.shown.find(text.encode(), self._seen)) < 0:
            assert time.monotonic() < end, f"no {text!r} in {self.shown[self._seen :]!r}"
            if select.select([self._parent], [], [], 0.1)[0]:
                data = os.read(self._parent, 65536)
                self.shown += data
                if b"\x1b[6n" in data:  # where is the cursor?
                    self.press("\x1b[1;1R")
        self._seen = at + len(text)


@contextmanager
def chat_in_terminal(
    tmp_path: Path, words: int, delay_seconds: float, *arguments: str
) -> Iterator[Terminal]:
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    command = [sys.executable, "-m", "tests.unit.cli.chat_driver", str(words), str(delay_seconds)]
    environment = {
        **ENVIRONMENT,
        "XDG_DATA_HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
        "TERM": "xterm",
    }
    # setsid: so that Ctrl-C, a byte in this terminal, becomes a signal to the process.
    with subprocess.Popen(
        ["setsid", "--ctty", *command, "chat", *arguments],
        stdin=child,
        stdout=child,
        stderr=child,
        env=environment,
    ) as process:
        os.close(child)
        try:
            yield Terminal(process, parent)
        finally:
            process.kill()
            os.close(parent)


def test_ctrl_c_ends_the_answer_and_not_the_chat(tmp_path: Path) -> None:
    with chat_in_terminal(tmp_path, 1000, 0.05, "--session", "s") as terminal:
        terminal.wait_for(">>>")
        terminal.press("one\r")
        terminal.wait_for("word word")
        terminal.press("\x03\x03")
        terminal.wait_for("stopped: what there is of the answer stays")
        terminal.wait_for(">>>")
        terminal.press("\x1b[A")
        terminal.wait_for("one")
        terminal.press("\x03")
        terminal.wait_for("Ctrl-D or /exit leaves")
        terminal.wait_for(">>>")
        terminal.press("/fiel\r")
        terminal.wait_for("did you mean /file?")
        terminal.wait_for(">>>")
        terminal.press("\x04")
        assert terminal.process.wait(20) == 0
    assert b"Traceback" not in terminal.shown
    (turn,) = SessionStore(tmp_path / "ellm" / "sessions").read("s").conversation.turns
    assert turn.finish_reason == "abort"
    assert turn.answer.startswith("word word")


def test_ctrl_c_in_a_pipe_ends_everything_and_keeps_what_was_said(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.unit.cli.chat_driver", "1000", "0.05"]
    with subprocess.Popen(
        [*command, "chat", "--session", "s"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**ENVIRONMENT, "XDG_DATA_HOME": str(tmp_path)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()
        assert os.read(process.stdout.fileno(), 5) == b"word "
        process.send_signal(2)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert len(SessionStore(tmp_path / "ellm" / "sessions").read("s").conversation.turns) == 1
