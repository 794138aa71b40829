"""From the bytes of a file to text, or to the reason why it is none."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

# Longest first: the UTF-32 mark begins with the UTF-16 one.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF8, "utf-8-sig", None),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)
_TEXT_CONTROLS = frozenset(b"\t\n\v\f\r\b\x1b")
# Text in an old 8-bit encoding has hardly any control characters; a tenth of random bytes are.
_MAX_CONTROL_SHARE = 0.01


class NotTextError(ValueError):
    """Bytes that are no text; the message says why."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Text of a file.

    Attributes:
        text: Its content, with Unix line ends.
        encoding: The encoding's name where it was not UTF-8, else None.
    """

    text: str
    encoding: str | None


def decode_text(data: bytes) -> Decoded:
    """Decode by byte order mark, as UTF-8, or else as Latin-1 if it looks like text at all.

    Raises:
        NotTextError: It is binary, or not what its byte order mark says.
    """
    for mark, codec, name in _MARKS:
        if data.startswith(mark):
            return _decode_marked(data, codec, name)
    if b"\0" in data:
        raise NotTextError("binary")
    try:
        return Decoded(_unix_lines(data.decode("utf-8")), None)
    except UnicodeDecodeError:
        pass
    controls = sum(1 for byte in data if byte < 32 and byte not in _TEXT_CONTROLS)
    if controls > len(data) * _MAX_CONTROL_SHARE:
        raise NotTextError("binary")
    try:
        # What Windows calls Latin-1: the same letters, with quotes and dashes where it has none.
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return Decoded(_unix_lines(text), "Latin-1")


def _decode_marked(data: bytes, codec: str, name: str | None) -> Decoded:
    try:
        text = data.decode(codec)
    except UnicodeDecodeError as error:
        raise NotTextError(f"not valid {name or 'UTF-8'}, which its first bytes promise") from error
    if "\0" in text:
        raise NotTextError("binary")
    return Decoded(_unix_lines(text), name)


def _unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
