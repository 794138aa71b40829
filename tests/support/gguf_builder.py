"""Writes GGUF bytes, right or wrong on purpose; knows neither the reader nor the `gguf` package.

Source: ggml docs/gguf.md. The functions make one piece each, so that a hostile file is a valid one
with one piece swapped; `GgufBuilder` lays out a whole valid file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, Self

import numpy as np

DEFAULT_ALIGNMENT = 32


class Kind(IntEnum):
    """Value types of the metadata."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


_CODES = {
    Kind.U8: "B",
    Kind.I8: "b",
    Kind.U16: "H",
    Kind.I16: "h",
    Kind.U32: "I",
    Kind.I32: "i",
    Kind.F32: "f",
    Kind.BOOL: "?",
    Kind.U64: "Q",
    Kind.I64: "q",
    Kind.F64: "d",
}

# Number, elements and bytes of a block.
TENSOR_TYPES = {
    "f32": (0, 1, 4),
    "f16": (1, 1, 2),
    "q4_0": (2, 32, 18),
    "q4_1": (3, 32, 20),
    "q5_0": (6, 32, 22),
    "q5_1": (7, 32, 24),
    "q8_0": (8, 32, 34),
    "q4_k": (12, 256, 144),
    "q5_k": (13, 256, 176),
    "q6_k": (14, 256, 210),
    "bf16": (30, 1, 2),
}


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return u64(len(data)) + data


def scalar(kind: Kind, value: Any) -> bytes:
    return string(value) if kind is Kind.STRING else struct.pack("<" + _CODES[kind], value)


def array(kind: Kind, values: Sequence[Any]) -> bytes:
    if kind is Kind.STRING:
        body = b"".join(string(value) for value in values)
    else:
        body = struct.pack(f"<{len(values)}{_CODES[kind]}", *values)
    return u32(kind) + u64(len(values)) + body


def entry(key: str | bytes, kind: Kind, value: Any) -> bytes:
    """One key-value pair; an array is (element kind, values)."""
    payload = array(*value) if kind is Kind.ARRAY else scalar(kind, value)
    return string(key) + u32(kind) + payload


def tensor_line(name: str | bytes, dims: Iterable[int], type_id: int, offset: int) -> bytes:
    """One line of the tensor list; `dims` fastest first, as in the file."""
    sizes = [u64(dim % 2**64) for dim in dims]
    return string(name) + u32(len(sizes)) + b"".join(sizes) + u32(type_id) + u64(offset)


def head(tensors: int, entries: int, version: int = 3) -> bytes:
    return b"GGUF" + u32(version) + u64(tensors) + u64(entries)


def gguf(
    entries: Sequence[bytes] = (),
    lines: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = DEFAULT_ALIGNMENT,
) -> bytes:
    """A file with right counts and padding around the given pieces."""
    header = head(len(lines), len(entries), version) + b"".join(entries) + b"".join(lines)
    return pad(header, alignment) + data


def pad(data: bytes, alignment: int = DEFAULT_ALIGNMENT) -> bytes:
    return data + bytes(-len(data) % alignment)


class GgufBuilder:
    """A valid file, piece by piece: `GgufBuilder().add("a.b", 3).tensor(...).build()`."""

    def __init__(self, *, version: int = 3, alignment: int = DEFAULT_ALIGNMENT) -> None:
        self._version = version
        self._alignment = alignment
        self._entries: dict[str, bytes] = {}
        self._lines: list[bytes] = []
        self._data = bytearray()
        if alignment != DEFAULT_ALIGNMENT:
            self.add("general.alignment", alignment)

    def add(self, key: str, value: Any, kind: Kind | None = None) -> Self:
        """Set a key; `kind` is the value's type, or the element type of a list or array.

        Without it: str, bool, u32 or i32, f32; a list goes by its first element; an array by its
        dtype.
        """
        if isinstance(value, np.ndarray):
            kind = _kind_of_dtype(value.dtype) if kind is None else kind
            self._entries[key] = entry(key, Kind.ARRAY, (kind, value.tolist()))
        elif isinstance(value, list | tuple):
            kind = _kind_of(value[0]) if kind is None else kind
            self._entries[key] = entry(key, Kind.ARRAY, (kind, value))
        else:
            kind = _kind_of(value) if kind is None else kind
            self._entries[key] = entry(key, kind, value)
        return self

    def remove(self, key: str) -> Self:
        del self._entries[key]
        return self

    def tensor(self, name: str, type_name: str, shape: Sequence[int], data: bytes) -> Self:
        """Append a tensor; `shape` in NumPy order, `data` exactly its bytes."""
        type_id, block_elements, block_bytes = TENSOR_TYPES[type_name]
        nbytes = int(np.prod(shape, dtype=np.int64)) // block_elements * block_bytes
        if len(data) != nbytes:
            raise ValueError(f"{name}: {len(data)} bytes, expected {nbytes}")
        self._data += bytes(-len(self._data) % self._alignment)
        self._lines.append(tensor_line(name, reversed(shape), type_id, len(self._data)))
        self._data += data
        return self

    def build(self) -> bytes:
        return gguf(
            list(self._entries.values()),
            self._lines,
            pad(bytes(self._data), self._alignment),
            version=self._version,
            alignment=self._alignment,
        )


def _kind_of(value: Any) -> Kind:
    if isinstance(value, str | bytes):
        return Kind.STRING
    if isinstance(value, bool):
        return Kind.BOOL
    if isinstance(value, float):
        return Kind.F32
    return Kind.I32 if value < 0 else Kind.U32


def _kind_of_dtype(dtype: np.dtype[Any]) -> Kind:
    if dtype == np.bool_:
        return Kind.BOOL
    return Kind[{"u": "U", "i": "I", "f": "F"}[dtype.kind] + str(dtype.itemsize * 8)]
