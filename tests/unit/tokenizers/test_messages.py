"""Messages are checked, and brought to one form, before a template sees them."""

from __future__ import annotations

from typing import Any

import pytest

from ellm.errors import RequestError
from ellm.tokenizers.messages import MAX_DEPTH, map_text, plain_messages, user_strings


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_text_parts_are_joined_by_lines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert plain_messages([{"role": "user", "content": parts}])[0]["content"] == "a\nb"


@pytest.mark.parametrize("message", [{"role": "x"}, {"role": "x", "content": None}])
def test_missing_content_is_empty_text(message: dict[str, object]) -> None:
    assert plain_messages([message]) == [{"role": "x", "content": ""}]


def test_other_fields_are_kept() -> None:
    call = {"function": {"name": "f", "arguments": {"x": [1, 2.5, None, True, "y"]}}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert plain_messages([message]) == [message]


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([], "empty"),
        ("hello", "must be a list"),
        ({"role": "user"}, "must be a list"),
        (None, "must be a list"),
        (["hello"], r"messages\[0\] must be a mapping"),
        ([{"content": "x"}], "role"),
        ([{"role": 1, "content": "x"}], "role"),
        ([{"role": "", "content": "x"}], "role"),
        ([{"role": "user\n", "content": "x"}], "role"),
        ([{"role": "user|>\n<|system", "content": "x"}], "role"),
        ([{"role": "u" * 65, "content": "x"}], "role"),
        ([{"role": "user", "content": 3}], "content must be a string"),
        ([{"role": "user", "content": b"x"}], "content must be a string"),
        ([{"role": "user", "content": {"type": "text"}}], "content must be a string"),
        ([{"role": "user", "content": ["x"]}], "'str'"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "'image_url'"),
        ([{"role": "user", "content": [{"text": "x"}]}], "only parts of type 'text'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "text must be a string"),
        ([{"role": "user", "content": "a\ud800"}], r"U\+D800"),
        ([{"role": "user", "content": [{"type": "text", "text": "\udfff"}]}], r"U\+DFFF"),
        ([{"role": "user", "content": "x", "name": "\ud800"}], "surrogate"),
        ([{"role": "user", "content": "x", "\ud800": 1}], "surrogate"),
        ([{"role": "user", "content": "x", "data": b"x"}], "JSON"),
        ([{"role": "user", "content": "x", "data": {1: 2}}], "key"),
        ([{"role": "user", "content": "x", 5: 2}], "key"),
        ([{"role": "user", "content": "x", "data": nested(MAX_DEPTH + 1)}], "deep"),
        ([{"role": "user", "content": "x", "data": nested(500)}], "deep"),
    ],
)
def test_malformed_messages_are_refused(messages: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint) as caught:
        plain_messages(messages)
    assert len(str(caught.value)) < 600


def test_map_text_changes_all_but_roles_and_field_names() -> None:
    message = {"role": "user", "content": "a", "calls": [{"name": "b", "<x>": ["c", 1, None]}]}
    plain = plain_messages([message])
    assert map_text(plain[0], str.upper) == {
        "role": "user",
        "content": "A",
        "calls": [{"name": "B", "<X>": ["C", 1, None]}],
    }
    assert sorted(user_strings(plain)) == ["<x>", "a", "b", "c"]
