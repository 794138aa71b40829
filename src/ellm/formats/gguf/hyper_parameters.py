"""The metadata of one architecture: `block_count` stands for `llama.block_count`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ellm.errors import InvalidModelError, UnsupportedError
from ellm.formats.gguf.metadata import MetadataReader, MetadataValue

# A frequency base of 1 would turn every pair alike, and YaRN divides by its logarithm.
_MIN_ROPE_BASE = 1.0001
_MAX_ROPE_BASE = 1e18
_SMALLEST_POSITIVE = float(np.finfo(np.float32).tiny)


class HyperParameters:
    """Range-checked getters; all raise `InvalidModelError` naming the key, found and expected."""

    def __init__(
        self,
        metadata: Mapping[str, MetadataValue],
        reader: MetadataReader,
        architecture: str,
        *,
        path: str,
    ) -> None:
        """Wrap a file's metadata and its reader; `path` is only named in errors."""
        self._metadata = metadata
        self._reader = reader
        self._architecture = architecture
        self._path = path

    def __contains__(self, name: str) -> bool:
        """Whether the file has this key."""
        return self.key(name) in self._metadata

    def key(self, name: str) -> str:
        """Return the whole key as in the file."""
        return f"{self._architecture}.{name}"

    def is_array(self, name: str) -> bool:
        """Whether the key holds one value per layer."""
        return isinstance(self._metadata.get(self.key(name)), np.ndarray | list)

    def integer(self, name: str, minimum: int, maximum: int, *, default: int | None = None) -> int:
        """Return an integer in minimum..maximum."""
        return self._reader.integer(self.key(name), default, minimum=minimum, maximum=maximum)

    def integers(self, name: str, *, length: int) -> list[int]:
        """Return an array of this many integers or flags."""
        values = self._reader.numbers(self.key(name), length=length)
        if values.dtype.kind not in "biu":
            raise self.invalid(name, f"an array of {length} integers or flags")
        return [int(value) for value in values]

    def uniform_integer(
        self,
        name: str,
        minimum: int,
        maximum: int,
        *,
        num_layers: int,
        default: int | None = None,
    ) -> int:
        """Return an integer that files may also store once per layer, if all layers agree.

        Raises:
            UnsupportedError: Layers differ.
        """
        if not self.is_array(name):
            return self.integer(name, minimum, maximum, default=default)
        first, *others = self.integers(name, length=num_layers)
        if any(other != first for other in others):
            raise self.unsupported(name, "different from layer to layer")
        if not minimum <= first <= maximum:
            raise self.invalid(name, f"integers from {minimum} to {maximum}")
        return first

    def number(
        self, name: str, minimum: float, maximum: float, *, default: float | None = None
    ) -> float:
        """Return a finite number in minimum..maximum."""
        return self._reader.number(self.key(name), default, minimum=minimum, maximum=maximum)

    def positive(self, name: str, *, maximum: float, default: float | None = None) -> float:
        """Return a number above 0, at most `maximum`."""
        return self.number(name, _SMALLEST_POSITIVE, maximum, default=default)

    def rope_base(self, name: str, *, default: float | None = None) -> float:
        """Return a base of rotation frequencies."""
        return self.number(name, _MIN_ROPE_BASE, _MAX_ROPE_BASE, default=default)

    def text(self, name: str, *, default: str) -> str:
        """Return a string."""
        return self._reader.text(self.key(name), default)

    def refuse_unless(self, name: str, neutral: float) -> None:
        """Refuse a feature that is not implemented unless its key is missing or `neutral`.

        Raises:
            UnsupportedError: The feature is used.
        """
        key = self.key(name)
        if isinstance(neutral, bool):
            found: float = self._reader.boolean(key, neutral)
        else:
            found = self._reader.number(key, neutral)
        if found != neutral:
            raise self.unsupported(name, str(found))

    def invalid(self, name: str, expected: str) -> InvalidModelError:
        """Make the error for a value that contradicts another."""
        return self._reader.invalid(self.key(name), expected=expected)

    def unsupported(self, name: str, found: str) -> UnsupportedError:
        """Make the error for a feature that is not implemented."""
        return UnsupportedError(
            f"{self._path}: metadata {self.key(name)!r} is {found}; this is not implemented"
        )
