"""What only a process of its own can show: signals, pipes, exit statuses, start-up."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *(p for p in sys.path if p)]),
}


def start(
    words: int, delay_seconds: float, *arguments: str, stderr: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.unit.cli.driver", str(words), str(delay_seconds)]
    return subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=ENVIRONMENT,
    )


def read_first_word(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return os.read(process.stdout.fileno(), 5)


def test_ctrl_c_ends_with_130_a_message_and_no_traceback() -> None:
    with start(1000, 0.05, "run", "-p", "x") as process:
        assert read_first_word(process) == b"word "
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert err.decode().strip().endswith("ellm: interrupted")
    assert b"Traceback" not in err
    assert time.monotonic() - begin < 5


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    with start(100_000, 0.0, "run", "-p", "x", "--quiet") as process:
        assert read_first_word(process) == b"word "
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=20) == 141
    assert err == b""


def test_a_closed_stderr_does_not_matter() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = start(3, 0.0, "ask", str(ROOT / "absent"), "-p", "x", stderr=write_end)
    os.close(write_end)
    process.communicate(timeout=20)
    assert process.returncode == 2


def test_progress_is_drawn_on_a_terminal_only(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    parent, child = pty.openpty()
    process = start(3, 0.0, "ask", str(tmp_path / "a.txt"), "-p", "x", stderr=child)
    os.close(child)
    out, _ = process.communicate(timeout=20)
    drawn = b""
    try:
        while data := os.read(parent, 4096):
            drawn += data
    except OSError:
        pass  # the terminal's other side is closed
    os.close(parent)
    assert out == b"word word word\n"
    assert b"reading 100%" in drawn
    assert b"\r\x1b[K" in drawn
    piped = start(3, 0.0, "ask", str(tmp_path / "a.txt"), "-p", "x")
    _, err = piped.communicate(timeout=20)
    assert b"reading" not in err
    assert b"\x1b" not in err


def test_an_answer_cannot_command_the_terminal() -> None:
    program = (
        "import sys; from ellm.cli.main import main\n"
        "from tests.unit.cli.fakes import FakeBackend\n"
        "FakeBackend(answer='a\\x1b[2Jb\\x07').install(setattr)\n"
        "sys.exit(main(['run', '-p', 'x', '--quiet']))"
    )
    parent, child = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", program], stdout=child, env=ENVIRONMENT)
    os.close(child)
    assert process.wait(timeout=20) == 0
    assert os.read(parent, 100) == b"a[2Jb\r\n"
    os.close(parent)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        (["run", "-p", "x", "-n", "0"], 2),
        (["show", "no-such-model"], 3),
        (["show", __file__], 4),
    ],
)
def test_exit_statuses(arguments: list[str], status: int) -> None:
    command = [sys.executable, "-m", "ellm", *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=False)
    assert done.returncode == status, done.stderr
    assert b"Traceback" not in done.stderr


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from ellm.cli.main import main; main(['--help'])\n"
        "heavy = {'numpy', 'tokenizers', 'huggingface_hub', 'jinja2', 'pathspec', 'rich'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, check=True
    )
    assert done.stderr.strip().endswith(b"heavy: []")
