from __future__ import annotations

import json

import pytest

from ellm.errors import CapacityError, DownloadError, EllmError, InvalidModelError, UnsupportedError

from .conftest import Ellm
from .fakes import FakeBackend, FakeTokenizer


def test_the_prompt_is_continued_as_it_is(ellm: Ellm, fake: FakeBackend) -> None:
    done = ellm("run", "-p", "Once upon", "-n", "5")
    assert (done.status, done.out) == (0, "ninety days notice\n")
    assert fake.tokenizer.encoded == ["Once upon"]
    assert fake.engine.requests[0][1].max_tokens == 5


@pytest.mark.parametrize("arguments", [["-p", "-"], []])
def test_the_prompt_can_be_piped(ellm: Ellm, fake: FakeBackend, arguments: list[str]) -> None:
    assert ellm("run", *arguments, stdin="caf\xe9\n".encode("latin-1")).status == 0
    assert fake.tokenizer.encoded == ["café\n"]


@pytest.mark.parametrize(
    ("stdin", "status", "message"),
    [
        (None, 2, "'-p': missing: give the prompt"),
        (b"", 2, "the prompt is empty"),
        (b"\0\1", 2, "the prompt on standard input is no text: binary"),
        (b"x" * 16_000_001, 2, "larger than 16 MB"),
    ],
)
def test_bad_standard_input(
    ellm: Ellm, fake: FakeBackend, stdin: bytes | None, status: int, message: str
) -> None:
    done = ellm("run", stdin=stdin)
    assert done.status == status
    assert message in done.err
    assert fake.engines == []


def test_system_and_chat_use_the_template(ellm: Ellm, fake: FakeBackend) -> None:
    ellm("run", "-p", "hi", "--system", "Be brief.")
    ellm("run", "-p", "hi", "--chat")
    assert fake.tokenizer.encoded == ["<system> Be brief. <user> hi", "<user> hi"]
    fake.tokenizer = FakeTokenizer(has_chat_template=False)
    done = ellm("run", "-p", "hi", "--chat")
    assert done.status == 1
    assert "need a model with a chat template" in done.err


def test_a_prompt_that_does_not_fit_is_refused(ellm: Ellm, fake: FakeBackend) -> None:
    done = ellm("run", "-p", "w " * 40, "-c", "20")
    assert done.status == 5
    assert "40 tokens does not fit the context of 20 tokens: -c 41 makes room" in done.err
    assert fake.engines == []


@pytest.mark.usefixtures("fake")
def test_json_output(ellm: Ellm) -> None:
    answer = json.loads(ellm("run", "-p", "x", "--json").out)
    assert set(answer) == {"text", "finish_reason", "model", "stats"}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidModelError("magic", path="m.gguf", offset=0, found="x", expected="GGUF"), 4),
        (UnsupportedError("no such architecture"), 4),
        (CapacityError("too little memory", needed=2, available=1), 5),
        (DownloadError("no network"), 3),
        (EllmError("something"), 1),
    ],
)
@pytest.mark.usefixtures("fake")
def test_errors_become_their_exit_status_and_one_line(
    ellm: Ellm,
    monkeypatch: pytest.MonkeyPatch,
    error: EllmError,
    status: int,
) -> None:
    def fail(*_args: object) -> None:
        raise error

    monkeypatch.setattr("ellm.cli.backend.load_engine", fail)
    done = ellm("run", "-p", "x", "--quiet")
    assert (done.status, done.out, done.err) == (status, "", f"ellm: {error}\n")


@pytest.mark.usefixtures("fake")
def test_an_engine_that_fails_half_way_keeps_what_was_printed(
    ellm: Ellm, monkeypatch: pytest.MonkeyPatch
) -> None:
    from . import fakes

    def failing(*_args: object, **_kwargs: object) -> object:
        yield fakes.FakeChunk("half ")
        raise EllmError("the step failed")

    monkeypatch.setattr(fakes.FakeEngine, "stream", failing)
    done = ellm("run", "-p", "x")
    assert done.status == 1
    assert done.out.startswith("half ")
    assert "ellm: the step failed" in done.err


@pytest.mark.usefixtures("fake")
def test_an_answer_that_somebody_else_stops_is_no_success(
    ellm: Ellm, monkeypatch: pytest.MonkeyPatch
) -> None:
    from . import fakes

    def aborted(*_args: object, **_kwargs: object) -> object:
        stats = fakes.FakeStats(prompt_tokens=1, answer_tokens=1)
        yield fakes.FakeChunk("part", "abort", stats)

    monkeypatch.setattr(fakes.FakeEngine, "stream", aborted)
    done = ellm("run", "-p", "x")
    assert (done.status, done.out) == (130, "part\n")
