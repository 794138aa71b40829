from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ellm.cli.chat import session_file
from ellm.cli.chat.conversation import Conversation, Turn
from ellm.cli.chat.session_file import InvalidSessionError, read_session, write_session
from ellm.cli.chat.session_store import SessionStore
from ellm.cli.documents import Document
from ellm.errors import ConfigError, EllmError, RequestError

from .chat_fakes import session
from .conftest import Ellm
from .test_process import ENVIRONMENT

TURN = Turn("q", "a", "stop", (Document("d.txt", "text", "Latin-1"),))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SessionStore:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    store = SessionStore.default()
    assert store.directory == tmp_path / "ellm" / "sessions"
    return store


def keep(store: SessionStore, name: str, *turns: Turn, used_seconds: float = 2e9) -> Path:
    with store.open(name) as opened:
        opened.write(session(*turns, used_seconds=used_seconds))
    return store.path(name)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(st.sampled_from("aé/. "), min_size=1, max_size=8)
documents = st.lists(st.builds(Document, names, texts, st.none() | texts), max_size=2).map(tuple)
turns = st.lists(st.builds(Turn, texts, texts, texts, documents), max_size=3).map(tuple)


@given(system=st.none() | texts, turns=turns, waiting=documents, summary=st.none() | texts)
def test_what_is_read_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    system: str | None,
    turns: tuple[Turn, ...],
    waiting: tuple[Document, ...],
    summary: str | None,
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.json"
    said = Conversation(system, turns, waiting, len(turns), summary)
    kept = session_file.Session(
        model=None,
        model_file="m",
        created_seconds=1.5,
        used_seconds=2.5,
        tokens=3,
        conversation=said,
    )
    write_session(path, kept)
    assert read_session(path) == kept


def test_files_and_directory_are_for_their_owner_alone(store: SessionStore) -> None:
    before = os.umask(0)
    try:
        path = keep(store, "s", TURN)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
    assert [p.name for p in store.directory.iterdir() if "part" in p.name] == []


@pytest.mark.parametrize("moment", ["replace", "_write_whole"])
def test_a_kill_before_the_rename_leaves_the_old_session(store: SessionStore, moment: str) -> None:
    path = keep(store, "s", TURN)
    before = path.read_bytes()
    target = "pathlib.Path.replace" if moment == "replace" else "os.fsync"
    program = (
        "import os, signal, sys\n"
        "from unittest import mock\n"
        "from ellm.cli.chat.session_store import SessionStore\n"
        "from tests.unit.cli.chat_fakes import session\n"
        "store = SessionStore.default()\n"
        "die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"with store.open('s') as opened, mock.patch('{target}', die):\n"
        "    opened.write(session())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=_environment(store), check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    # What the killed process left behind is in nobody's way.
    keep(store, "s")
    assert store.read("s") == session()
    assert store.names() == ["s"]


def test_a_disk_that_is_full_leaves_the_old_session(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store, "s", TURN)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with store.open("s") as opened, pytest.raises(EllmError, match="No space left"):
        opened.write(session())
    assert store.read("s") == session(TURN)


def test_two_processes_cannot_open_one_session(store: SessionStore) -> None:
    program = (
        "import sys\n"
        "from ellm.cli.chat.session_store import SessionStore\n"
        "opened = SessionStore.default().open('s')\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=_environment(store),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(RequestError, match="open in another process"):
            store.open("s")
        store.open("other").close()
        # The lock ends with the process, however that ends.
        process.kill()
    store.open("s").close()


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "/etc/x", ".hidden", "-x", "a b", "a\0", "é", "a" * 65, "a\n"],
)
def test_names_cannot_lead_anywhere_else(store: SessionStore, name: str) -> None:
    for do in (store.open, store.read, store.delete, store.create):
        with pytest.raises(ConfigError, match="is no name of a session"):
            do(name)
    assert not store.directory.exists()


def without(name: str, *, within: str | None = None) -> dict[str, Any]:
    values = json.loads(SOUND)
    (values[within] if within else values).pop(name)
    return values


def changed(name: str, value: object, *, within: str | None = None) -> dict[str, Any]:
    values = json.loads(SOUND)
    (values[within] if within else values)[name] = value
    return values


SOUND = json.dumps(
    {
        "format": "ellm session",
        "version": 1,
        "model": None,
        "model_file": "m",
        "created_seconds": 1,
        "used_seconds": 2,
        "tokens": 3,
        "conversation": {
            "system": None,
            "turns": [{"question": "q", "answer": "a", "finish_reason": "stop", "documents": []}],
            "waiting": [],
            "left_out": 0,
            "summary": None,
        },
    }
)
HOSTILE: list[tuple[object, str]] = [
    (b"", "Expecting value"),
    (b"{", "Expecting property name"),
    (b"\xff\xfe\xff", "decode"),
    (b"[" * 100_000, "recursion"),
    (b"[]", "the file is of type list, expected an object"),
    (b"1" * 10_000, "digits"),
    ({}, "it is no session of eLLM"),
    (changed("format", "other"), "it is no session of eLLM"),
    (changed("version", 2), "it has version 2, this eLLM reads version 1"),
    (without("version"), "it has version None"),
    (changed("model", 3), "model is of type int, expected text"),
    (changed("model_file", None), "model_file is missing"),
    (changed("model_file", "\x1b[2J"), "model_file holds control characters"),
    (changed("tokens", -1), "tokens is -1"),
    (changed("tokens", True), "tokens is True"),
    (changed("tokens", 1.5), "tokens is 1.5"),
    (changed("used_seconds", float("nan")), "used_seconds is nan"),
    (changed("used_seconds", 1e300), "used_seconds is 1e"),
    (changed("created_seconds", "now"), "created_seconds is 'now'"),
    (changed("conversation", []), "conversation is of type list"),
    (changed("turns", {}, within="conversation"), "turns is of type dict, expected a list"),
    (changed("turns", [1], within="conversation"), "an entry of turns is of type int"),
    (changed("turns", [{}], within="conversation"), "question is missing, expected text"),
    (changed("left_out", 2, within="conversation"), "left_out is 2, there are 1 turns"),
    (changed("summary", [], within="conversation"), "summary is of type list"),
    (changed("system", "\ud800", within="conversation"), "surrogates not allowed"),
    (
        changed("waiting", [{"name": "d", "text": 1}], within="conversation"),
        "text is of type int, expected text",
    ),
]


@pytest.mark.parametrize(("content", "told"), HOSTILE)
def test_a_damaged_file_is_an_error_that_names_it_and_is_left_as_it_is(
    store: SessionStore, ellm: Ellm, content: object, told: str
) -> None:
    path = keep(store, "s")
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(data)
    with pytest.raises(InvalidSessionError, match="cannot be read") as caught:
        store.open("s")
    assert told in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.path == path
    done = ellm("chat", "--session", "s", stdin=b"x\n")
    assert (done.status, done.out) == (1, "")
    assert path.read_bytes() == data
    # It can still be deleted, and a copy cannot be made.
    assert ellm("sessions", "fork", "s", "t").status == 1
    store.delete("s")
    assert store.names() == []


def test_a_file_that_is_too_large_is_not_even_read(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = keep(store, "s", TURN)
    monkeypatch.setattr(session_file, "MAX_SESSION_BYTES", 100)
    with pytest.raises(InvalidSessionError, match="it has more than 100 B"):
        store.read("s")
    # Nor written: it could not be read again.
    with pytest.raises(EllmError, match="allowed are 100 B"):
        write_session(path, session(TURN, TURN))


def test_links_pipes_and_directories_are_no_sessions(store: SessionStore, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(SOUND)
    keep(store, "other")
    store.path("link").symlink_to(elsewhere)
    store.path("dangling").symlink_to(tmp_path / "absent")
    os.mkfifo(store.path("pipe"))
    store.path("folder").mkdir()
    for name in ("link", "dangling", "pipe", "folder"):
        with pytest.raises(InvalidSessionError):
            store.open(name)
    store.delete("link")
    assert elsewhere.read_text() == SOUND


def test_a_link_in_place_of_the_part_or_lock_is_not_followed(
    store: SessionStore, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    keep(store, "s")
    (store.directory / ".s.json.part").symlink_to(elsewhere)
    keep(store, "s", TURN)
    (store.directory / ".t.lock").symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="cannot be opened"):
        store.open("t")
    assert elsewhere.read_text() == "mine"


def test_a_directory_that_others_can_write_to_is_refused(store: SessionStore) -> None:
    keep(store, "s")
    store.directory.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod 700"):
        store.open("s")


def test_a_relative_data_home_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    expected = Path.home() / ".local" / "share" / "ellm" / "sessions"
    assert SessionStore.default().directory == expected


def test_list_shows_the_session_used_last_first_and_names_damaged_ones(
    ellm: Ellm, store: SessionStore
) -> None:
    assert "no sessions in" in ellm("sessions", "list").err
    keep(store, "old", TURN, used_seconds=1e9)
    keep(store, "new", TURN, TURN)
    store.path("bad").write_text("{")
    done = ellm("sessions", "list")
    assert done.status == 0
    head, *rows = done.out.splitlines()
    assert head.split() == ["session", "model", "questions", "documents", "tokens", "last", "used"]
    assert [row.split()[:5] for row in rows] == [
        ["new", "fake.gguf", "2", "2", "17"],
        ["old", "fake.gguf", "1", "1", "17"],
    ]
    assert str(store.path("bad")) in done.err
    listed = json.loads(ellm("sessions", "list", "--json").out)
    assert [item["name"] for item in listed["sessions"]] == ["new", "old"]
    assert [item["name"] for item in listed["damaged"]] == ["bad"]
    assert listed["sessions"][0]["documents"] == ["d.txt", "d.txt"]


def test_show_prints_what_was_said(ellm: Ellm, store: SessionStore) -> None:
    with store.open("s") as opened:
        said = Conversation("Short.", (TURN, Turn("q2", "a2", "abort")), (), 1, "they talked")
        opened.write(replace(session(), conversation=said))
    done = ellm("sessions", "show", "s")
    assert done.out == (
        "system: Short.\n\n+ d.txt, 4 characters\n>>> q\na\n\n"
        "--- the model gets what follows, and this of what came before: they talked ---\n\n"
        ">>> q2\na2 (stopped)\n\n"
    )
    shown = json.loads(ellm("sessions", "show", "s", "--json").out)
    assert shown["conversation"]["turns"][0]["question"] == "q"
    assert ellm("sessions", "show", "absent").status == 1


def test_fork_and_delete(ellm: Ellm, store: SessionStore) -> None:
    keep(store, "s", TURN)
    assert ellm("sessions", "fork", "s", "t").status == 0
    assert store.read("t").conversation == store.read("s").conversation
    assert time.time() - store.read("t").used_seconds < 60
    assert ellm("sessions", "fork", "s", "t").status == 1
    assert ellm("sessions", "delete", "s", stdin=b"").status == 2
    assert ellm("sessions", "delete", "s", "t", "--yes").status == 0
    assert store.names() == []
    assert "there is no session 's'" in ellm("sessions", "delete", "s", "-y").err


def _environment(store: SessionStore) -> dict[str, str]:
    return {**ENVIRONMENT, "XDG_DATA_HOME": str(store.directory.parents[1])}
