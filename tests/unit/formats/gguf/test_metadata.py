"""Typed getters return the value or an error that names key, file, offset, found and expected."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ellm.errors import InvalidModelError
from ellm.formats.gguf import MetadataReader, MetadataValue

VALUES: dict[str, MetadataValue] = {
    "count": 3,
    "negative": -1,
    "half": 0.5,
    "nan": math.nan,
    "infinite": math.inf,
    "flag": True,
    "name": "llama",
    "long": "x" * 500,
    "texts": ["a", "b"],
    "numbers": np.array([1, 2, 3], dtype=np.int32),
}
OFFSETS = {key: 100 + i for i, key in enumerate(VALUES)}


@pytest.fixture
def reader() -> MetadataReader:
    return MetadataReader(VALUES, "model.gguf", OFFSETS)


def test_values_of_each_type(reader: MetadataReader) -> None:
    assert reader.integer("count") == 3
    assert reader.integer("negative", minimum=-5) == -1
    assert reader.number("half") == 0.5
    assert reader.text("name") == "llama"
    assert reader.boolean("flag") is True
    assert reader.texts("texts", length=2) == ["a", "b"]
    assert reader.numbers("numbers", length=3).tolist() == [1, 2, 3]
    assert "count" in reader
    assert "other" not in reader


def test_integer_serves_as_number(reader: MetadataReader) -> None:
    value = reader.number("count")
    assert (value, type(value)) == (3.0, float)


def test_default_is_for_missing_keys_only(reader: MetadataReader) -> None:
    assert reader.integer("other", 7) == 7
    assert reader.integer("count", 7) == 3
    assert reader.number("other", 1.5) == 1.5
    assert reader.text("other", "") == ""
    assert reader.boolean("other", False) is False
    with pytest.raises(InvalidModelError):
        reader.integer("name", 7)


GETTERS: list[tuple[str, Callable[[MetadataReader], Any], str, str]] = [
    ("count as text", lambda r: r.text("count"), "3", "a string"),
    ("count as flag", lambda r: r.boolean("count"), "3", "a bool"),
    ("flag as count", lambda r: r.integer("flag"), "True", "an integer from 0"),
    ("flag as number", lambda r: r.number("flag"), "True", "a finite number"),
    ("text as count", lambda r: r.integer("name"), "'llama'", "an integer from 0"),
    ("float as count", lambda r: r.integer("half"), "0.5", "an integer from 0"),
    ("array as count", lambda r: r.integer("numbers"), "an array of 3 int32", "an integer"),
    ("negative count", lambda r: r.integer("negative"), "-1", "an integer from 0"),
    ("below minimum", lambda r: r.integer("count", minimum=4, maximum=9), "3", "from 4 to 9"),
    ("above maximum", lambda r: r.integer("count", minimum=1, maximum=2), "3", "from 1 to 2"),
    ("NaN", lambda r: r.number("nan"), "nan", "a finite number"),
    ("infinity", lambda r: r.number("infinite"), "inf", "a finite number"),
    ("number too small", lambda r: r.number("half", minimum=0.75), "0.5", "from 0.75 to inf"),
    ("number too large", lambda r: r.number("half", maximum=0.25), "0.5", "from -inf to 0.25"),
    ("long text as count", lambda r: r.integer("long"), "(500 characters)", "an integer"),
    ("texts as numbers", lambda r: r.numbers("texts"), "2 strings", "an array of numbers"),
    ("numbers as texts", lambda r: r.texts("numbers"), "3 int32", "an array of strings"),
    ("too few texts", lambda r: r.texts("texts", length=3), "2 strings", "an array of 3 strings"),
    ("too few numbers", lambda r: r.numbers("numbers", length=4), "3 int32", "of 4 numbers"),
    ("missing count", lambda r: r.integer("other"), "no such key", "an integer from 0"),
    ("missing number", lambda r: r.number("other"), "no such key", "a finite number"),
    ("missing text", lambda r: r.text("other"), "no such key", "a string"),
    ("missing flag", lambda r: r.boolean("other"), "no such key", "a bool"),
    ("missing texts", lambda r: r.texts("other"), "no such key", "an array of strings"),
]


@pytest.mark.parametrize(
    ("get", "found", "expected"), [case[1:] for case in GETTERS], ids=[case[0] for case in GETTERS]
)
def test_wrong_value_is_an_error(
    reader: MetadataReader, get: Callable[[MetadataReader], Any], found: str, expected: str
) -> None:
    with pytest.raises(InvalidModelError) as caught:
        get(reader)
    error = caught.value
    assert error.path == "model.gguf"
    assert found in error.found
    assert expected in error.expected
    assert len(str(error)) < 300
    key = str(error).split("'")[1]
    assert error.offset == OFFSETS.get(key)


def test_offsets_are_optional() -> None:
    with pytest.raises(InvalidModelError) as caught:
        MetadataReader(VALUES, "model.gguf").integer("name")
    assert caught.value.offset is None
