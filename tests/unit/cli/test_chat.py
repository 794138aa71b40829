from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from ellm.cli.chat.session_file import read_session
from ellm.errors import EllmError

from .chat_fakes import SUMMARY, FakeChatBackend, FakeChatEngine, contents
from .conftest import Ellm
from .fakes import FakeTokenizer

ASKED = "\n\nUse the documents above to answer this question: "


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("The contract ends.")
    (tmp_path / "b c.txt").write_text("So does this.")
    return tmp_path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeChatBackend:
    backend = FakeChatBackend(context_length=1000)
    backend.install(monkeypatch.setattr)
    return backend


def session_file(home: Path, name: str) -> Path:
    return home / "data" / "ellm" / "sessions" / f"{name}.json"


def test_a_pipe_is_answered_line_by_line_with_all_that_was_said(
    ellm: Ellm, fake: FakeChatBackend
) -> None:
    done = ellm("chat", stdin=b"one\ntwo\n")
    assert (done.status, done.out) == (0, "ninety days notice\nninety days notice\n")
    assert "fake.gguf: 1,000 tokens of context" in done.err
    assert "of 1,000 tokens; " in done.err
    assert [contents(said) for said in fake.said] == [
        ["one"],
        ["one", "ninety days notice", "two"],
    ]
    assert fake.engine.closed


def test_the_first_prompt_about_documents_is_that_of_ask(ellm: Ellm, fake: FakeChatBackend) -> None:
    ellm("ask", "a.txt", "-p", "Which?", "--system", "Short.", stdin=b"")
    ellm("chat", "a.txt", "--system", "Short.", stdin=b"Which?\n")
    assert fake.tokenizer.encoded[0] in fake.tokenizer.encoded[1:]


def test_documents_come_first_or_with_the_next_question(ellm: Ellm, fake: FakeChatBackend) -> None:
    ellm("chat", "a.txt", stdin=b"one\n/file 'b c.txt'\ntwo\n")
    first = "=== a.txt ===\nThe contract ends."
    second = "=== b c.txt ===\nSo does this."
    assert contents(fake.said[-1]) == [
        f"{first}{ASKED}one",
        "ninety days notice",
        f"{second}{ASKED}two",
    ]


def test_the_context_is_the_models_or_what_was_asked_for(ellm: Ellm, fake: FakeChatBackend) -> None:
    ellm("chat", stdin=b"x\n")
    ellm("chat", "-c", "500", "-n", "7", stdin=b"x\n")
    assert [engine.options["context_tokens"] for engine in fake.engines] == [None, 500]
    assert [engine.requests[0][1].max_tokens for engine in fake.engines] == [250, 7]


def test_undo_takes_back_the_last_turn_and_keeps_its_documents(
    ellm: Ellm, fake: FakeChatBackend
) -> None:
    done = ellm("chat", "a.txt", stdin=b"one\ntwo\n/undo\n/undo\nthree\n")
    assert "taken back: two; 1 question left" in done.out
    assert contents(fake.said[-1]) == [f"=== a.txt ===\nThe contract ends.{ASKED}three"]
    assert ellm("chat", stdin=b"/undo\n").status == 1


def test_clear_forgets_all_but_documents(ellm: Ellm, fake: FakeChatBackend) -> None:
    ellm("chat", "a.txt", stdin=b"one\n/file 'b c.txt'\ntwo\n/clear\nthree\n")
    (only,) = contents(fake.said[-1])
    assert only.startswith("=== a.txt ===")
    assert "=== b c.txt ===" in only
    assert only.endswith(f"{ASKED}three")


@pytest.mark.usefixtures("fake")
def test_stats_session_and_help_tell_on_stdout(ellm: Ellm, home: Path) -> None:
    done = ellm("chat", "a.txt", "--session", "s", "-q", stdin=b"one\n/stats\n/session\n/help\n")
    assert "mem_bandwidth_util 0.50" in done.out
    assert "of 1,000 tokens used" in done.out
    assert f"session s: {session_file(home, 's')}" in done.out
    assert "documents  a.txt" in done.out
    assert "/fork NAME" in done.out
    assert done.err == ""
    assert "not kept" in ellm("chat", stdin=b"/session\n").out


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("/fiel a.txt", "did you mean /file?"),
        ("/xyzzy", "there is no command /xyzzy; /help lists them"),
        ("/file", "/file needs the path"),
        ("/file 'a", "No closing quotation"),
        ("/file absent", "no such file or directory: absent"),
        ("/file -", "cannot be a document"),
        ("/undo now", "/undo takes nothing behind it, found 'now'"),
        ("/overflow never", "choose error or drop-oldest or summarise"),
        ("/fork a/b", "is no name of a session"),
        ("/fork", "is no name of a session"),
    ],
)
@pytest.mark.usefixtures("fake")
def test_a_command_that_fails_ends_a_pipe_with_its_status(
    ellm: Ellm, typed: str, told: str
) -> None:
    done = ellm("chat", stdin=f"{typed}\nunread\n".encode())
    assert done.status in (1, 2)
    assert told in done.err
    assert done.out == ""


@pytest.mark.parametrize("word", ["exit", "quit", "bye"])
def test_exit_leaves(ellm: Ellm, fake: FakeChatBackend, word: str) -> None:
    done = ellm("chat", stdin=f"one\n/{word}\ntwo\n".encode())
    assert (done.status, len(fake.said)) == (0, 1)


def test_json_is_one_object_per_line_that_was_typed(ellm: Ellm, fake: FakeChatBackend) -> None:
    done = ellm("chat", "--json", "--session", "s", stdin=b"one\n/undo\n")
    answer, command = map(json.loads, done.out.splitlines())
    assert answer["text"] == fake.answer
    assert (answer["finish_reason"], answer["model"], answer["session"]) == (
        "stop",
        "fake.gguf",
        "s",
    )
    assert answer["stats"]["prompt_tokens"] == 6
    assert command == {"command": "undo", "text": "taken back: one; 0 questions left"}
    assert done.err == ""


@pytest.mark.usefixtures("fake")
def test_no_stats_leaves_out_the_line_of_figures(ellm: Ellm) -> None:
    assert "first token after" in ellm("chat", stdin=b"x\n").err
    assert "first token after" not in ellm("chat", "--no-stats", stdin=b"x\n").err


def test_a_session_goes_on_in_another_process_with_its_model(
    ellm: Ellm, fake: FakeChatBackend, home: Path
) -> None:
    ellm("chat", "a.txt", "-m", "x", "--system", "Short.", "--session", "s", stdin=b"one\n")
    (home / "a.txt").write_text("Something else by now.")
    done = ellm("chat", "--session", "s", stdin=b"two\n")
    assert "session s goes on: 1 question, 1 document so far" in done.err
    assert contents(fake.said[-1]) == [
        "Short.",
        f"=== a.txt ===\nThe contract ends.{ASKED}one",
        "ninety days notice",
        "two",
    ]
    assert fake.references == ["x", "x"]
    assert stat.S_IMODE(session_file(home, "s").stat().st_mode) == 0o600


def test_a_document_that_is_there_already_is_not_added_again(
    ellm: Ellm, fake: FakeChatBackend
) -> None:
    ellm("chat", "a.txt", "--session", "s", stdin=b"one\n")
    done = ellm("chat", "a.txt", "--session", "s", stdin=b"two\n/file a.txt\nthree\n")
    assert done.err.count("a.txt is in the conversation already") == 2
    assert sum("=== a.txt ===" in content for content in contents(fake.said[-1])) == 1


def test_a_document_that_waits_is_kept(ellm: Ellm, fake: FakeChatBackend) -> None:
    ellm("chat", "--session", "s", stdin=b"/file a.txt\n")
    ellm("chat", "--session", "s", stdin=b"one\n")
    assert contents(fake.said[-1]) == [f"=== a.txt ===\nThe contract ends.{ASKED}one"]


@pytest.mark.usefixtures("fake")
def test_fork_goes_on_in_the_copy_and_leaves_the_old_as_it_is(ellm: Ellm, home: Path) -> None:
    ellm("chat", "--session", "s", stdin=b"one\n/fork t\ntwo\n")
    old, new = read_session(session_file(home, "s")), read_session(session_file(home, "t"))
    assert old is not None
    assert new is not None
    assert [len(kept.conversation.turns) for kept in (old, new)] == [1, 2]
    assert ellm("chat", "--session", "s", stdin=b"/fork t\n").status == 1


def test_a_failed_answer_leaves_no_trace(
    ellm: Ellm, fake: FakeChatBackend, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ellm("chat", "--session", "s", stdin=b"one\n")
    before = session_file(home, "s").read_bytes()
    monkeypatch.setattr(FakeChatEngine, "failing", EllmError("the step failed"))
    done = ellm("chat", "--session", "s", stdin=b"two\nthree\n")
    assert (done.status, len(fake.said)) == (1, 1)
    assert "ellm: the step failed" in done.err
    assert session_file(home, "s").read_bytes() == before


def test_a_model_without_template_and_options_that_cannot_work_are_refused_before_loading(
    ellm: Ellm, fake: FakeChatBackend, home: Path
) -> None:
    (home / "long.txt").write_text("word " * 900)
    cases = [
        (["-c", "1001"], 2, "-c 1001 is more than this model's context"),
        (["-n", "1000"], 5, "does not fit the context of 1,000 tokens"),
        (["long.txt"], 5, "system message, documents and this question alone have"),
        (["absent"], 2, "no such file"),
        (["--on-overflow", "cut"], 2, "allowed is error or drop-oldest or summarise"),
        (["--session", "../x"], 2, "is no name of a session"),
    ]
    for arguments, status, told in cases:
        done = ellm("chat", *arguments, stdin=b"x\n")
        assert (done.status, told in done.err) == (status, True), done.err
    fake.tokenizer = FakeTokenizer(has_chat_template=False)
    done = ellm("chat", stdin=b"x\n")
    assert done.status == 1
    assert "needs a model with a chat template" in done.err
    assert fake.engines == []


def test_a_full_context_is_an_error_that_names_numbers_and_choices(
    ellm: Ellm, fake: FakeChatBackend
) -> None:
    done = ellm("chat", "-c", "60", "-n", "20", stdin=b"some more words\n" * 6)
    assert done.status == 5
    assert len(fake.said) == 5
    assert (
        "the conversation has 48 tokens with this question, 40 fit (context of 60, 20" in done.err
    )
    assert "drop-oldest" in done.err
    assert "summarise" in done.err


def test_drop_oldest_tells_and_keeps_everything_in_the_session(
    ellm: Ellm, fake: FakeChatBackend, home: Path
) -> None:
    done = ellm(
        *("chat", "-c", "60", "-n", "20", "-q", "--on-overflow", "drop-oldest", "--session", "s"),
        stdin=b"some more words\n" * 6,
    )
    assert done.status == 0
    assert "the model no longer gets the " in done.err
    assert "48 tokens have become " in done.err
    kept = read_session(session_file(home, "s"))
    assert kept is not None
    assert len(kept.conversation.turns) == 6
    assert kept.conversation.left_out > 0
    assert len(fake.said) == 6


def test_summarise_has_the_model_sum_up_and_says_so(ellm: Ellm, fake: FakeChatBackend) -> None:
    done = ellm(
        *("chat", "a.txt", "-c", "250", "-n", "20", "-q", "--on-overflow", "summarise"),
        stdin=b"some more words\n" * 40,
    )
    assert done.status == 0, done.err
    assert "the context is full: the model sums up the " in done.err
    assert "summed up: " in done.err
    assert SUMMARY not in done.out
    last = contents(fake.said[-1])
    assert last[0].startswith("=== a.txt ===")
    assert last[1] == SUMMARY


def test_overflow_can_be_chosen_when_it_happens(ellm: Ellm, fake: FakeChatBackend) -> None:
    typed = b"some more words\n" * 5 + b"/overflow drop-oldest\n" + b"some more words\n"
    done = ellm("chat", "-c", "60", "-n", "20", stdin=typed)
    assert (done.status, len(fake.said)) == (0, 6)


def test_an_answer_that_was_cut_is_told(
    ellm: Ellm, monkeypatch: pytest.MonkeyPatch, fake: FakeChatBackend
) -> None:
    from . import fakes

    def cut(*_args: object, **_kwargs: object) -> object:
        yield fakes.FakeChunk("half", "length", fakes.FakeStats(prompt_tokens=1, answer_tokens=1))

    monkeypatch.setattr(FakeChatEngine, "stream", cut)
    done = ellm("chat", "-n", "9", stdin=b"x\n")
    assert "the answer was cut after 9 tokens; -n allows more" in done.err
    assert fake.engine.closed
