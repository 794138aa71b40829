"""Typed, range-checked access to GGUF metadata: a wrong value is an error where it is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ellm.errors import InvalidModelError

MetadataValue = int | float | bool | str | list[str] | NDArray[Any]

_MAX_INTEGER = 2**63 - 1
_SHOWN_CHARACTERS = 60  # a message stays one readable line
_NO_OFFSETS: Mapping[str, int] = MappingProxyType({})


class MetadataReader:
    """Getters per type. A missing key is an error unless a default is given.

    All getters raise `InvalidModelError` naming file, key, offset, found and expected.
    """

    def __init__(
        self,
        metadata: Mapping[str, MetadataValue],
        path: Path | str,
        offsets: Mapping[str, int] = _NO_OFFSETS,
    ) -> None:
        """Read `metadata` of the file at `path`; `offsets` are the bytes where values start."""
        self._metadata = metadata
        self._path = str(path)
        self._offsets = offsets

    def __contains__(self, key: str) -> bool:
        """Tell whether the file has the key."""
        return key in self._metadata

    def integer(
        self,
        key: str,
        default: int | None = None,
        *,
        minimum: int = 0,
        maximum: int = _MAX_INTEGER,
    ) -> int:
        """Return an integer in [minimum, maximum]."""
        expected = f"an integer from {minimum} to {maximum}"
        value = self._get(key, default, expected)
        # bool is a subclass of int, but a flag where a count belongs is a broken file.
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(key, expected=expected)
        if not minimum <= value <= maximum:
            raise self.invalid(key, expected=expected)
        return value

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        minimum: float = -math.inf,
        maximum: float = math.inf,
    ) -> float:
        """Return a finite number in [minimum, maximum]; integers are converted."""
        expected = f"a finite number from {minimum:g} to {maximum:g}"
        value = self._get(key, default, expected)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.invalid(key, expected=expected)
        if not math.isfinite(value) or not minimum <= value <= maximum:
            raise self.invalid(key, expected=expected)
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._get(key, default, "a string")
        if not isinstance(value, str):
            raise self.invalid(key, expected="a string")
        return value

    def boolean(self, key: str, default: bool | None = None) -> bool:  # noqa: FBT001 (a value)
        """Return a bool."""
        value = self._get(key, default, "a bool")
        if not isinstance(value, bool):
            raise self.invalid(key, expected="a bool")
        return value

    def texts(self, key: str, *, length: int | None = None) -> list[str]:
        """Return an array of strings, of this length if one is given."""
        expected = "an array of strings" if length is None else f"an array of {length} strings"
        value = self._get(key, None, expected)
        if not isinstance(value, list) or length not in (None, len(value)):
            raise self.invalid(key, expected=expected)
        return value

    def numbers(self, key: str, *, length: int | None = None) -> NDArray[Any]:
        """Return an array of integers, floats or bools, of this length if one is given."""
        expected = "an array of numbers" if length is None else f"an array of {length} numbers"
        value = self._get(key, None, expected)
        if not isinstance(value, np.ndarray) or length not in (None, value.size):
            raise self.invalid(key, expected=expected)
        return value

    def invalid(self, key: str, *, expected: str) -> InvalidModelError:
        """Make the error for a key that is missing or holds something else than `expected`."""
        found = _describe(self._metadata[key]) if key in self._metadata else "no such key"
        return InvalidModelError(
            f"metadata {key!r}",
            path=self._path,
            offset=self._offsets.get(key),
            found=found,
            expected=expected,
        )

    def _get(self, key: str, default: MetadataValue | None, expected: str) -> MetadataValue:
        value = self._metadata.get(key, default)
        if value is None:
            raise self.invalid(key, expected=expected)
        return value


def _describe(value: MetadataValue) -> str:
    if isinstance(value, list):
        return f"an array of {len(value)} strings"
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} {value.dtype} values"
    if isinstance(value, str) and len(value) > _SHOWN_CHARACTERS:
        return f"{value[:_SHOWN_CHARACTERS]!r}... ({len(value)} characters)"
    return repr(value)
