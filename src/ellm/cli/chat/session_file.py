"""The file of a kept conversation: its format, checked value by value when it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ellm.cli.chat.conversation import Conversation, Turn
from ellm.cli.documents import MAX_TOTAL_BYTES, Document
from ellm.errors import EllmError
from ellm.kv.disk.private_files import open_private, sync_directory
from ellm.units import format_bytes

FORMAT = "ellm session"
VERSION = 1
# All documents that can be packed, their line ends as two characters, and as much talk.
MAX_SESSION_BYTES = 2 * MAX_TOTAL_BYTES

T = TypeVar("T")


class InvalidSessionError(EllmError):
    """The file of a session is damaged, or no file of a session.

    Attributes:
        path: The file, which is left as it is.
    """

    def __init__(self, path: Path, what: str) -> None:
        """Name the file, what is wrong with it and what can be done."""
        super().__init__(
            f"the session {path} cannot be read: {what}; it is left as it is: mend it, move it "
            "away, or name another session"
        )
        self.path = path


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A kept conversation.

    Attributes:
        model: What `-m` was; None is the default model.
        model_file: Name of the model's file.
        created_seconds: When it began, by the wall clock.
        used_seconds: When it was written last.
        tokens: Tokens of the context that are used.
        conversation: What was said.
    """

    model: str | None
    model_file: str
    created_seconds: float
    used_seconds: float
    tokens: int
    conversation: Conversation


def write_session(path: Path, session: Session) -> None:
    """Write a session in place of what was there, so that a crash leaves one of the two.

    Raises:
        EllmError: It is too large, or the disk cannot be written to; the file is unchanged.
    """
    values = {"format": FORMAT, "version": VERSION, **asdict(session)}
    # A question that came from a broken terminal may hold half a character.
    data = json.dumps(values, ensure_ascii=False).encode("utf-8", "replace")
    if len(data) > MAX_SESSION_BYTES:
        raise EllmError(
            f"the session {path} is not written any more: it would have {format_bytes(len(data))}, "
            f"allowed are {format_bytes(MAX_SESSION_BYTES)}; begin another one"
        )
    # The lock of the session is held: nobody else writes this part.
    part = path.with_name(f".{path.name}.part")
    try:
        _write_whole(part, data)
        part.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise EllmError(f"the session {path} cannot be written: {error.strerror}") from error


def read_session(path: Path) -> Session | None:
    """Return the session in a file, None if there is no file.

    Raises:
        InvalidSessionError: The file is damaged, of another version or none of its own.
    """
    try:
        data = _read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidSessionError(path, error.strerror or str(error)) from error
    if len(data) > MAX_SESSION_BYTES:
        raise InvalidSessionError(path, f"it has more than {format_bytes(MAX_SESSION_BYTES)}")
    try:
        return _session(_object(json.loads(data), "the file"))
    except (ValueError, RecursionError) as error:
        raise InvalidSessionError(path, str(error)) from error


def _write_whole(part: Path, data: bytes) -> None:
    part.unlink(missing_ok=True)
    descriptor = open_private(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> bytes:
    with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
        return file.read(MAX_SESSION_BYTES + 1)


def _session(values: dict[str, Any]) -> Session:
    if values.get("format") != FORMAT:
        raise ValueError("it is no session of eLLM")
    if values.get("version") != VERSION:
        raise ValueError(
            f"it has version {values.get('version')!r:.40}, this eLLM reads version {VERSION}"
        )
    return Session(
        model=_optional_text(values, "model"),
        model_file=_name(values, "model_file"),
        created_seconds=_seconds(values, "created_seconds"),
        used_seconds=_seconds(values, "used_seconds"),
        tokens=_count(values, "tokens"),
        conversation=_conversation(_object(values.get("conversation"), "conversation")),
    )


def _conversation(values: dict[str, Any]) -> Conversation:
    turns = tuple(_each(values, "turns", _turn))
    left_out = _count(values, "left_out")
    if left_out > len(turns):
        raise ValueError(f"left_out is {left_out}, there are {len(turns)} turns")
    return Conversation(
        system=_optional_text(values, "system"),
        turns=turns,
        waiting=tuple(_each(values, "waiting", _document)),
        left_out=left_out,
        summary=_optional_text(values, "summary"),
    )


def _turn(values: dict[str, Any]) -> Turn:
    return Turn(
        question=_text(values, "question"),
        answer=_text(values, "answer"),
        finish_reason=_text(values, "finish_reason"),
        documents=tuple(_each(values, "documents", _document)),
    )


def _document(values: dict[str, Any]) -> Document:
    return Document(
        _name(values, "name"), _text(values, "text"), _optional_text(values, "encoding")
    )


def _each(values: dict[str, Any], name: str, read: Callable[[dict[str, Any]], T]) -> list[T]:
    items = values.get(name)
    if not isinstance(items, list):
        raise _wrong(name, items, "a list")
    return [read(_object(item, f"an entry of {name}")) for item in items]


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(name, value, "an object")
    return value


def _text(values: dict[str, Any], name: str) -> str:
    value = values.get(name)
    if not isinstance(value, str):
        raise _wrong(name, value, "text")
    value.encode()  # UnicodeEncodeError, a ValueError: half a character, which no tokenizer takes
    return value


def _name(values: dict[str, Any], name: str) -> str:
    value = _text(values, name)
    if not value.isprintable():
        raise ValueError(f"{name} holds control characters")
    return value


def _optional_text(values: dict[str, Any], name: str) -> str | None:
    return None if values.get(name) is None else _text(values, name)


def _count(values: dict[str, Any], name: str) -> int:
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is {value!r:.40}, expected a whole number from 0")
    return value


def _seconds(values: dict[str, Any], name: str) -> float:
    value = values.get(name)
    # The year 9999 is the last that a date can name; NaN fails the comparison.
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 2.5e11:
        raise ValueError(f"{name} is {value!r:.40}, expected seconds since 1970")
    return float(value)


def _wrong(name: str, value: object, expected: str) -> ValueError:
    found = "missing" if value is None else f"of type {type(value).__name__}"
    return ValueError(f"{name} is {found}, expected {expected}")
