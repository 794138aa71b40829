"""Hostile first 24 bytes and metadata."""

from __future__ import annotations

import struct
from pathlib import Path

from ellm.errors import UnsupportedError
from tests.malformed.hostile import Hostile, hostile_bytes
from tests.support.gguf_builder import Kind, entry, gguf, head, pad, string, u32, u64

HEAD = 24  # bytes before the first key
MAX_U64 = 2**64 - 1
ARCHITECTURE = entry("general.architecture", Kind.STRING, "llama")
VERSION_2_OR_3 = "little-endian version 2 or 3"


def _versions() -> list[Hostile]:
    invalid = [
        hostile_bytes(
            f"version {version}",
            gguf([ARCHITECTURE], version=version),
            offset=4,
            found=str(version),
            expected=VERSION_2_OR_3,
        )
        for version in (0, 4, 2**32 - 1)
    ]
    return [
        *invalid,
        hostile_bytes(
            "version 1",
            gguf([ARCHITECTURE], version=1),
            error=UnsupportedError,
            offset=4,
            found="the obsolete version 1",
            expected=VERSION_2_OR_3,
        ),
        hostile_bytes(
            "big-endian",
            b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
            error=UnsupportedError,
            offset=4,
            found="big-endian version 3",
            expected=VERSION_2_OR_3,
        ),
    ]


def _starts() -> list[Hostile]:
    at_least = "a GGUF file of at least 24 bytes"
    return [
        hostile_bytes("empty", b"", offset=0, found="an empty file", expected=at_least),
        hostile_bytes("three bytes", b"GGU", offset=0, found="3 bytes", expected=at_least),
        hostile_bytes(
            "magic FUGG",
            b"FUGG" + gguf([ARCHITECTURE])[4:],
            offset=0,
            found="'FUGG'",
            expected="'GGUF'",
        ),
        hostile_bytes(
            "binary magic",
            b"\xff\x00\n'" + bytes(40),
            offset=0,
            found=r"'\xff\x00\x0a\x27'",
            expected="'GGUF'",
        ),
        hostile_bytes("only a magic", b"GGUF", offset=4, found="0 bytes left", expected="4 or"),
        hostile_bytes(
            "cut in the tensor count",
            head(0, 0)[:11],
            offset=8,
            found="3 bytes left",
            expected="8 or more",
        ),
        hostile_bytes(
            "cut in the metadata count",
            head(0, 0)[:23],
            offset=16,
            found="7 bytes left",
            expected="8 or more",
        ),
    ]


def _counts() -> list[Hostile]:
    sizes = {
        "2^64-1": MAX_U64,
        "SIZE_MAX / 33 + 2": MAX_U64 // 33 + 2,  # times the least size of a line, wraps to small
        "SIZE_MAX / 64": MAX_U64 // 64,
        "one million": 10**6,
    }
    tensors = [
        hostile_bytes(
            f"tensor count {name}",
            head(count, 1) + ARCHITECTURE,
            offset=8,
            found=str(count),
            expected="all that the header has room for",
        )
        for name, count in sizes.items()
    ]
    entries = [
        hostile_bytes(
            f"metadata count {name}",
            head(0, count) + ARCHITECTURE,
            offset=HEAD,
            found=f"{len(ARCHITECTURE)} bytes left",
            expected="or more",
        )
        for name, count in {**sizes, "SIZE_MAX / 14 + 2": MAX_U64 // 14 + 2}.items()
    ]
    return tensors + entries


def _keys() -> list[Hostile]:
    after = u32(Kind.U32) + u32(7)
    name_rules = "UTF-8 without control characters"
    return [
        hostile_bytes(
            "key length 2^64-1",
            head(0, 1) + u64(MAX_U64) + b"abc" + after,
            offset=HEAD + 8,
            found="11 bytes left",
            expected=f"{MAX_U64} or more",
        ),
        hostile_bytes(
            "key length 0",
            head(0, 1) + string("") + after,
            offset=HEAD,
            found="a length of 0",
            expected="1 to 65535 bytes",
        ),
        hostile_bytes(
            "key longer than 64 KiB",
            head(0, 1) + string("k" * 65536) + after,
            offset=HEAD,
            found="a length of 65536",
            expected="1 to 65535 bytes",
        ),
        *(
            hostile_bytes(
                f"key with {label}",
                head(0, 1) + string(key) + after,
                offset=HEAD + 8,
                found=shown,
                expected=name_rules,
            )
            for label, key, shown in (
                ("a bare continuation byte", b"a\x80b", r"'a\x80b'"),
                ("an overlong form", b"\xc0\xaf", r"'\xc0\xaf'"),
                ("a surrogate", b"\xed\xa0\x80", r"'\xed\xa0\x80'"),
                ("a character above U+10FFFF", b"\xf4\x90\x80\x80", r"'\xf4\x90\x80\x80'"),
                ("half a character", b"abcdefgh\xe2\x82", r"'abcdefgh\xe2\x82'"),
                ("NUL", b"general.name\x00x", r"'general.name\x00x'"),
                ("a line break", b"a\nb", r"'a\x0ab'"),
            )
        ),
        hostile_bytes(
            "duplicate key",
            gguf([entry("a.b", Kind.U32, 1), ARCHITECTURE, entry("a.b", Kind.U32, 2)]),
            offset=HEAD + len(entry("a.b", Kind.U32, 1)) + len(ARCHITECTURE) + 8,
            found="'a.b' again",
            expected="each key once",
        ),
        hostile_bytes(
            "cut after the key",
            head(0, 1) + string("general.file_type") + b"\x04\x00",
            offset=HEAD + 8 + 17,
            found="2 bytes left",
            expected="4 or more",
        ),
    ]


def _value(name: str, payload: bytes, **error: object) -> Hostile:
    """A file whose one value, of key `k`, has this type and these bytes."""
    return hostile_bytes(name, head(0, 1) + string("k") + payload, **error)  # type: ignore[arg-type]


def _values() -> list[Hostile]:
    at_type = HEAD + 9
    at_value = at_type + 4
    return [
        *(
            _value(
                f"value type {number}",
                u32(number) + bytes(16),
                offset=at_type,
                found=f"type {number}",
                expected="a value type from 0 to 12",
            )
            for number in (13, 255, 2**32 - 1)
        ),
        _value(
            "string past the end of the file",
            u32(Kind.STRING) + u64(100) + b"short",
            offset=at_value + 8,
            found="5 bytes left",
            expected="100 or more",
        ),
        _value(
            "string length 2^64-1",
            u32(Kind.STRING) + u64(MAX_U64) + b"short",
            offset=at_value + 8,
            found="5 bytes left",
            expected=f"{MAX_U64} or more",
        ),
        _value(
            "string that is not UTF-8",
            u32(Kind.STRING) + string(b"caf\xe9"),
            offset=at_value + 8,
            found=r"'caf\xe9'",
            expected="UTF-8",
        ),
        _value(
            "bool 2",
            u32(Kind.BOOL) + b"\x02",
            offset=at_value,
            found="bool 2",
            expected="0 or 1",
        ),
        _value(
            "number cut in half",
            u32(Kind.U64) + b"\x01\x02\x03\x04",
            offset=at_value,
            found="4 bytes left",
            expected="8 or more",
        ),
    ]


def _arrays() -> list[Hostile]:
    at_array = HEAD + 13
    at_values = at_array + 12
    counts = [
        _value(
            f"array of 2^{power} {kind.name}",
            u32(Kind.ARRAY) + u32(kind) + u64(2**power) + bytes(8),
            offset=at_values,
            found="8 bytes left",
            expected="or more",
        )
        # 2^61 and 2^62 times the size of an element wrap to 0.
        for kind, power in (
            (Kind.U8, 60),
            (Kind.STRING, 60),
            (Kind.STRING, 61),
            (Kind.F32, 62),
            (Kind.F64, 61),
            (Kind.U32, 40),
        )
    ]
    nested = (u32(Kind.ARRAY) + u64(1)) * 2000 + u32(Kind.U8) + u64(1) + b"\x00"
    flat = "an array of numbers, bools or strings"
    return [
        *counts,
        _value(
            "arrays nested 2000 deep",
            u32(Kind.ARRAY) + nested,
            offset=at_array,
            found="an array of array",
            expected=flat,
        ),
        _value(
            "array of type 77",
            u32(Kind.ARRAY) + u32(77) + u64(1) + bytes(8),
            offset=at_array,
            found="an array of type 77",
            expected=flat,
        ),
        _value(
            "array of strings whose last one is cut",
            u32(Kind.ARRAY) + u32(Kind.STRING) + u64(2) + string("whole") + u64(9) + b"cut",
            offset=at_values + 13 + 8,
            found="3 bytes left",
            expected="9 or more",
        ),
        _value(
            "array of strings with one that is not UTF-8",
            u32(Kind.ARRAY) + u32(Kind.STRING) + u64(2) + string("a") + string(b"\xff"),
            offset=at_values + 9 + 8,
            found=r"'\xff'",
            expected="UTF-8",
        ),
        _value(
            "array of bools with a 3",
            u32(Kind.ARRAY) + u32(Kind.BOOL) + u64(3) + b"\x01\x00\x03",
            offset=at_values + 2,
            found="bool 3",
            expected="0 or 1",
        ),
    ]


def _alignments() -> list[Hostile]:
    key = "general.alignment"
    at_value = HEAD + len(ARCHITECTURE) + len(string(key)) + 4
    rule = "a u32 power of two from 8 to 2097152"
    values = [
        hostile_bytes(
            f"alignment {value}",
            pad(gguf([ARCHITECTURE, entry(key, Kind.U32, value)])),
            offset=at_value,
            found=str(value),
            expected=rule,
        )
        for value in (0, 1, 3, 13, 48, 2**31)
    ]
    kinds = [
        hostile_bytes(
            f"alignment of type {shown}",
            gguf([ARCHITECTURE, entry(key, kind, value)]),
            offset=at_value,
            found=f"a value of type {shown}",
            expected=rule,
        )
        for kind, value, shown in (
            (Kind.I32, 32, "i32"),
            (Kind.U64, 32, "u64"),
            (Kind.STRING, "32", "string"),
            (Kind.ARRAY, (Kind.U32, [32]), "array"),
        )
    ]
    return values + kinds


def _write_sparse(directory: Path) -> Path:
    """A file whose size is real for `stat`, so that a count within it is plausible."""
    path = directory / "model.gguf"
    with path.open("wb") as file:
        file.write(head(0, 1) + string("k") + u32(Kind.ARRAY) + u32(Kind.U8) + u64(2**36))
        file.truncate(2**37)
    return path


CASES = [
    *_starts(),
    *_versions(),
    *_counts(),
    *_keys(),
    *_values(),
    *_arrays(),
    *_alignments(),
    Hostile(
        "array of 64 GiB in a sparse file",
        _write_sparse,
        found=f"{2**36} bytes more",
        expected="a header of at most 67108864 bytes",
        offset=HEAD + 25,
    ),
]
