"""The process behind templates is light, survives threads and forks, and leaves no orphan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ellm.errors import TemplateError
from ellm.tokenizers import template_process
from ellm.tokenizers.template_process import TemplateProcess

WORKER = Path(template_process.__file__).with_name("template_worker.py")
SOURCE = Path(template_process.__file__).parents[2]
START = """
import os, sys, time
from ellm.errors import TemplateError
from ellm.tokenizers.template_process import TemplateProcess
process = TemplateProcess("{{ n }}{% if n == 'loop' %}{% for a in range(99999) %}"
    "{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}")
assert process.render({"n": 1}) == "1"
print(process._worker._process.pid, flush=True)
"""


def run_script(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START + script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def assert_ends(pid: int, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while is_running(pid):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.02)


def test_the_worker_imports_nothing_of_ours_nor_numpy() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-X", "importtime", str(WORKER)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    imported = {line.rsplit(b"|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert b"jinja2" in imported
    assert not [m for m in imported if m.split(b".")[0] in (b"ellm", b"numpy", b"tokenizers")]


def test_the_process_is_kept_between_chats() -> None:
    process = TemplateProcess("{{ n }}")
    process.render({"n": 1})
    first = process._worker
    with pytest.raises(TemplateError):
        TemplateProcess("{{ 1 / n }}").render({"n": 0})
    assert process.render({"n": 2}) == "2"
    assert process._worker is first
    process.close()


def test_threads_get_their_own_answers() -> None:
    process = TemplateProcess("{{ text }}!")
    texts = [f"{i} " * (i * 500 + 1) for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda text: process.render({"text": text}), texts))
    assert answers == [text + "!" for text in texts]
    process.close()


def test_a_killed_process_is_an_error_once() -> None:
    process = TemplateProcess("{{ n }}")
    process.render({"n": 1})
    assert process._worker is not None
    process._worker._process.kill()
    with pytest.raises(TemplateError, match="ended"):
        process.render({"n": 2})
    assert process.render({"n": 3}) == "3"
    process.close()


def test_a_python_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for executable in ("/nonexistent/python", "/bin/false"):
        monkeypatch.setattr(sys, "executable", executable)
        with pytest.raises(TemplateError):
            TemplateProcess("x").render({})


def test_the_worker_ends_with_the_last_reference() -> None:
    process = TemplateProcess("{{ n }}")
    process.render({"n": 1})
    assert process._worker is not None
    pid = process._worker._process.pid
    del process
    assert_ends(pid)


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "os._exit(0)", "raise SystemExit"])
def test_no_worker_outlives_a_program_that_ends(ending: str) -> None:
    with run_script(ending) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
    assert_ends(pid)


@pytest.mark.parametrize("script", ["time.sleep(60)", "process.render({'n': 'loop'})"])
def test_no_worker_outlives_a_program_that_is_killed(script: str) -> None:
    with run_script(script) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        time.sleep(0.2)
        assert is_running(pid)
        program.send_signal(signal.SIGKILL)
    assert_ends(pid)


def test_a_fork_starts_its_own_worker_and_leaves_the_parents_alone() -> None:
    script = """
child = os.fork()
if child == 0:
    assert process._worker is None
    assert process.render({"n": "child"}) == "child"
    print(process._worker._process.pid, flush=True)
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert process.render({"n": "parent"}) == "parent"
print(process._worker._process.pid, flush=True)
"""
    with run_script(script) as program:
        assert program.stdout is not None
        parents, childs, again = (int(line) for line in program.stdout.read().split())
    assert program.returncode == 0
    assert again == parents != childs
    assert_ends(parents)
    assert_ends(childs)


def test_a_worker_sees_its_parent_end_while_a_forked_child_lives() -> None:
    script = """
if os.fork() == 0:
    sys.stdout.close()
    os.close(1)
    time.sleep(30)
    os._exit(0)
os._exit(0)
"""
    with run_script(script) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
    assert_ends(pid, 15)
