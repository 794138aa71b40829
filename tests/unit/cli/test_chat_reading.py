from __future__ import annotations

import io

import pytest

from ellm.cli.chat.reading import Line, PipeInput, is_open, parse
from ellm.cli.documents import MAX_FILE_BYTES
from ellm.errors import ConfigError


def everything(data: bytes) -> list[str]:
    source, found = PipeInput(io.BytesIO(data)), []
    while (typed := source.read()) is not None:
        found.append(typed)
    return found


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("hello", Line("hello")),
        (" \n", None),
        ("/help", Line("", "help")),
        ("/FILE  a b.txt ", Line("a b.txt", "file")),
        ("/usr/bin/ellm is what?", Line("/usr/bin/ellm is what?")),
        ("/etc", Line("", "etc")),
        ("/ what?", Line("/ what?")),
        ("/help\nis a command?", Line("/help\nis a command?")),
        ('"""/help"""', Line("/help")),
        ('"""\n  def f():\n    pass\n"""', Line("  def f():\n    pass")),
        ('"""only begun', Line("only begun")),
        ('""""""', None),
        ('a """ b', Line('a """ b')),
    ],
)
def test_what_was_typed_is_a_message_a_command_or_nothing(typed: str, line: Line | None) -> None:
    assert parse(typed) == line


def test_a_pipe_has_a_message_per_line_and_blank_lines_are_none() -> None:
    assert everything(b"one\n\n \t\ntwo\r\nthree") == ["one\n", "two\n", "three"]
    assert everything(b"") == []
    assert everything(b"\n\n") == []


def test_between_quotes_lines_belong_together() -> None:
    data = b'"""\na\n\nb\n"""\nc\n"""d"""\n"""e\nf"""\n"""open\nto the end'
    messages = [parse(typed) for typed in everything(data)]
    assert messages == [
        Line("a\n\nb"),
        Line("c"),
        Line("d"),
        Line("e\nf"),
        Line("open\nto the end"),
    ]


@pytest.mark.parametrize("text", ['"""', '"""a', ' """a\nb', '"""a""', '"""""'])
def test_open_quotes_ask_for_more(text: str) -> None:
    assert is_open(text)
    assert everything(f"{text}\nmore".encode()) == [f"{text}\nmore"]


@pytest.mark.parametrize("text", ['""""""', '"""a"""', '"""a\nb"""', 'a"""', "a", ""])
def test_closed_quotes_and_other_text_do_not(text: str) -> None:
    assert not is_open(text)


@pytest.mark.parametrize("data", [b"\0\1\2\n", b'"""' + b"x\n" * (MAX_FILE_BYTES // 2)])
def test_what_is_no_text_or_too_large_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match="standard input"):
        everything(data)


def test_old_encodings_are_read_as_documents_are() -> None:
    assert everything(b"caf\xe9\n") == ["café\n"]
