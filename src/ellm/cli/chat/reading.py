"""What a user types into a chat: messages, on one line or several, and commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from ellm.cli.documents import MAX_FILE_BYTES
from ellm.cli.text_files import NotTextError, decode_text
from ellm.errors import ConfigError
from ellm.units import format_bytes

QUOTES = '"""'
# A path, as /usr/bin or /etc/passwd, has more than one separator or a dot: it begins a message.
_COMMAND = re.compile(r"/(?P<name>[A-Za-z-]+)(?:\s+(?P<argument>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Line:
    """A message or a command.

    Attributes:
        text: The message, or what follows the command's name.
        command: The command's name without the stroke; None for a message.
    """

    text: str
    command: str | None = None


class ChatInput(Protocol):
    """Where messages come from.

    Attributes:
        interactive: Whether somebody sits there, to see what went wrong and try again.
    """

    interactive: bool

    def read(self) -> str | None:
        """Return the next message or command as it was typed; None at the end."""


def is_open(text: str) -> bool:
    """Return whether a message that begins with three quotes has not ended with three."""
    text = text.strip()
    return text.startswith(QUOTES) and not (len(text) >= 2 * len(QUOTES) and text.endswith(QUOTES))


def parse(typed: str) -> Line | None:
    """Return what was typed; None if it is blank."""
    text = typed.strip()
    if text.startswith(QUOTES):
        text = text.removeprefix(QUOTES).removesuffix(QUOTES).strip("\r\n")
        return Line(text) if text.strip() else None
    command = _COMMAND.fullmatch(text) if "\n" not in text else None
    if command:
        return Line((command["argument"] or "").strip(), command["name"].lower())
    return Line(text) if text else None


class PipeInput:
    """Messages from a pipe or file: a line each, or all lines between two lines of three quotes.

    A line each is what `llama-cli` makes of a pipe, the quotes are `ollama`'s.
    """

    interactive = False

    def __init__(self, stream: BinaryIO) -> None:
        """Read from `stream`."""
        self._stream = stream

    def read(self) -> str | None:
        """Return the next message that is not blank; quotes that are open end with the input.

        Raises:
            ConfigError: A message is no text, or too large.
        """
        lines: list[bytes] = []
        size_bytes = 0
        while line := self._stream.readline(MAX_FILE_BYTES + 1):
            lines.append(line)
            size_bytes += len(line)
            if size_bytes > MAX_FILE_BYTES:
                raise ConfigError(
                    f"a message on standard input is larger than {format_bytes(MAX_FILE_BYTES)}"
                )
            if lines[0].isspace():
                lines, size_bytes = [], 0
            elif not _is_open(lines):
                break
        return _decode(b"".join(lines)) if lines else None


def _is_open(lines: list[bytes]) -> bool:
    """As `is_open`, of lines: the whole text is not looked at again for each of them."""
    quotes = QUOTES.encode()
    first, last = lines[0].strip(), lines[-1].strip()
    if not first.startswith(quotes):
        return False
    return not last.endswith(quotes) or (len(lines) == 1 and len(first) < 2 * len(quotes))


def _decode(data: bytes) -> str:
    try:
        return decode_text(data).text
    except NotTextError as error:
        raise ConfigError(f"a message on standard input is no text: {error}") from error
