"""Checks the messages of a chat and brings them into the form templates expect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ellm.errors import RequestError

Message: TypeAlias = Mapping[str, object]
Plain: TypeAlias = "str | int | float | bool | list[Plain] | dict[str, Plain] | None"

MAX_DEPTH = 32
# Templates write the role into control tokens ("<|" + role + "|>"), so it cannot be hidden from
# them like other text; a bare name cannot do harm.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Plain]]:
    """Return copies of `messages` made of JSON values, each with "role" and string "content".

    Raises:
        RequestError: There is no message; one has no usable role, or content other than text.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        raise RequestError(f"messages must be a list, not {type(messages).__name__}")
    if not messages:
        raise RequestError("messages is empty; a chat needs at least one message")
    return [_plain_message(i, message) for i, message in enumerate(messages)]


def map_text(message: Mapping[str, Plain], change: Callable[[str], str]) -> dict[str, Plain]:
    """Return `message` with `change` applied to every string a user may have written.

    That is all but the role and those names of fields that are bare names.
    """
    return {
        key: value if key == "role" else _map_value(value, change) for key, value in message.items()
    }


def user_strings(messages: Sequence[Mapping[str, Plain]]) -> Iterator[str]:
    """Yield every string that `map_text` would change."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    for message in messages:
        map_text(message, keep)
    yield from found


def _plain_message(index: int, message: Message) -> dict[str, Plain]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be a mapping, not {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or not _NAME.fullmatch(role):
        raise RequestError(
            f"{where}.role must be a name of up to 64 letters, digits, '_', '.' or '-', "
            f"not {str(role)[:80]!r}"
        )
    plain: dict[str, Plain] = {}
    for key, value in message.items():
        name = _plain_key(key, where)
        inside = f"{where}.{name}"
        is_content = name == "content"
        plain[name] = _content_text(value, inside) if is_content else _plain_value(value, inside, 0)
    plain.setdefault("content", "")
    return plain


def _content_text(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return _checked_text(content, where)
    if isinstance(content, bytes) or not isinstance(content, Sequence):
        raise RequestError(
            f"{where} must be a string, null or a list of parts, not {type(content).__name__}"
        )
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if not isinstance(part, Mapping) or kind != "text":
            raise RequestError(
                f"{where}[{i}] is of type {str(kind)[:64]!r}; only parts of type 'text' can be read"
            )
        text = part.get("text")
        if not isinstance(text, str):
            raise RequestError(f"{where}[{i}].text must be a string, not {type(text).__name__}")
        texts.append(_checked_text(text, f"{where}[{i}].text"))
    return "\n".join(texts)


def _plain_value(value: object, where: str, depth: int) -> Plain:
    if depth > MAX_DEPTH:
        raise RequestError(f"{where[:200]} is nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        return _checked_text(value, where)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {
            _plain_key(key, where): _plain_value(item, f"{where}.{key}", depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain_value(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise RequestError(f"{where[:200]} must be a JSON value, not {type(value).__name__}")


def _plain_key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise RequestError(f"{where[:200]} has a key of type {type(key).__name__}, not a string")
    return _checked_text(key, where)


def _checked_text(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{where[:200]} holds a lone surrogate (U+{ord(text[error.start]):04X}), "
            "which is not Unicode text"
        ) from error
    return str(text)


def _map_value(value: Plain, change: Callable[[str], str]) -> Plain:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_map_value(item, change) for item in value]
    if isinstance(value, dict):
        return {
            key if _NAME.fullmatch(key) else change(key): _map_value(item, change)
            for key, item in value.items()
        }
    return value
