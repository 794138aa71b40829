"""Hostile tensor lists and tensor data."""

from __future__ import annotations

from collections.abc import Iterable

from ellm.errors import UnsupportedError
from tests.malformed.hostile import Hostile, hostile_bytes
from tests.support.gguf_builder import (
    TENSOR_TYPES,
    Kind,
    entry,
    gguf,
    head,
    string,
    tensor_line,
    u32,
    u64,
)

ARCHITECTURE = entry("general.architecture", Kind.STRING, "llama")
LIST = 24 + len(ARCHITECTURE)  # where the tensor list starts
NAME = LIST + 8  # the first tensor's name, `t`
COUNT = NAME + 1  # its number of dimensions
DIMS = COUNT + 4
INT64_MAX = 2**63 - 1
SUPPORTED = "one of f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k"


def _one(
    name: str,
    dims: Iterable[int] = (8,),
    type_id: int = 0,
    offset_in_data: int = 0,
    data: bytes = bytes(32),
    **error: object,
) -> Hostile:
    """A file with the single tensor `t`."""
    line = tensor_line("t", dims, type_id, offset_in_data)
    return hostile_bytes(name, gguf([ARCHITECTURE], [line], data), **error)  # type: ignore[arg-type]


def _several(name: str, lines: list[bytes], data: bytes, **error: object) -> Hostile:
    return hostile_bytes(name, gguf([ARCHITECTURE], lines, data), **error)  # type: ignore[arg-type]


def _names() -> list[Hostile]:
    rest = u32(1) + u64(8) + u32(0) + u64(0)
    line = tensor_line("t", (8,), 0, 0)
    return [
        _several(
            "tensor name of length 0",
            [string("") + rest + bytes(8)],
            bytes(32),
            offset=LIST,
            found="a length of 0",
            expected="1 to 64 bytes",
        ),
        _several(
            "tensor name of 65 bytes",
            [string("x" * 65) + rest],
            bytes(32),
            offset=LIST,
            found="a length of 65",
            expected="1 to 64 bytes",
        ),
        _several(
            "tensor name length 2^63",
            [u64(2**63) + b"t" + rest],
            bytes(32),
            offset=LIST + 8,
            found="bytes left",
            expected=f"{2**63} or more",
        ),
        _several(
            "tensor name that is not UTF-8",
            [string(b"\xfft") + rest],
            bytes(32),
            offset=NAME,
            found=r"'\xfft'",
            expected="UTF-8 without control characters",
        ),
        _several(
            "duplicate tensor",
            [line, tensor_line("t", (8,), 0, 32)],
            bytes(64),
            offset=LIST + len(line) + 8,
            found="'t' again",
            expected="each name once",
        ),
    ]


def _dimensions() -> list[Hostile]:
    counts = [
        _one(
            f"{count} dimensions",
            [8] * min(count, 9),
            offset=COUNT,
            found=f"{count} dimensions",
            expected="1 to 4",
        )
        for count in (0, 5)
    ]
    too_many = string("t") + u32(2**32 - 1) + u64(8) * 4 + u32(0) + u64(0)
    overflows = [
        _one(
            f"dimensions {label}",
            dims,
            offset=DIMS,
            found="dimensions whose product overflows",
            expected=f"at most {INT64_MAX} elements",
        )
        for label, dims in (
            ("(INT64_MAX, 2)", (INT64_MAX, 2)),
            ("(2^62, 4)", (2**62, 4)),
            ("that wrap to 0", (2**32, 2**32)),
            ("that wrap to 16", (2**60 + 1, 16)),
            ("of INT64_MAX each", (INT64_MAX,) * 4),
        )
    ]
    return [
        *counts,
        _several(
            "2^32-1 dimensions",
            [too_many],
            bytes(32),
            offset=COUNT,
            found=f"{2**32 - 1} dimensions",
            expected="1 to 4",
        ),
        *(
            _one(
                f"dimension {dim}",
                (8, dim),
                offset=DIMS + 8,
                found=f"dimension {dim}",
                expected="1 or more",
            )
            for dim in (0, -1, -(2**63))
        ),
        *overflows,
        _one(
            "f32 bytes that wrap to 0",
            (2**62,),
            offset=NAME,
            found=f"{2**62} elements",
            expected="fewer than 2^64 bytes",
        ),
        _one(
            "exabytes of q8_0",
            (2**62,),
            TENSOR_TYPES["q8_0"][0],
            offset=DIMS + 8 + 4,
            found=f"data offset 0 and {2**62 // 32 * 34} bytes",
            expected="within the 32 bytes of tensor data",
        ),
    ]


def _types() -> list[Hostile]:
    at_type = DIMS + 8
    blocks = [
        _one(
            f"{name} row of {columns} elements",
            (columns, 2),
            type_id,
            data=bytes(4096),
            offset=NAME,
            found=f"rows of {columns} elements",
            expected=f"a multiple of {elements}, the block of {name}",
        )
        for name, (type_id, elements, _) in TENSOR_TYPES.items()
        for columns in {elements - 1, elements * 3 // 2, elements + 1}
        if elements > 1
    ]
    unknown = [
        _one(
            f"tensor type {number}",
            (256,),
            number,
            data=bytes(2048),
            offset=at_type,
            found=f"type {number}",
            expected=SUPPORTED,
        )
        for number in (4, 5, 31, 36, 42, 999, 2**32 - 1)
    ]
    unsupported = [
        _one(
            f"tensor type {name}",
            (256,),
            number,
            data=bytes(2048),
            error=UnsupportedError,
            offset=at_type,
            found=f"type {name}",
            expected=SUPPORTED,
        )
        for number, name in ((10, "q2_k"), (20, "iq4_nl"), (24, "i8"), (35, "tq2_0"), (39, "mxfp4"))
    ]
    return blocks + unknown + unsupported


def _offsets() -> list[Hostile]:
    at_offset = DIMS + 8 + 4
    first = tensor_line("a", (8,), 0, 0)
    second_offset = LIST + len(first) + 8 + 1 + 4 + 8 + 4
    return [
        _one(
            "unaligned offset",
            offset_in_data=8,
            data=bytes(64),
            offset=at_offset,
            found="data offset 8",
            expected="a multiple of the alignment 32",
        ),
        _one(
            "offset past the end of the file",
            offset_in_data=2**20,
            offset=at_offset,
            found=f"data offset {2**20} and 32 bytes",
            expected="within the 32 bytes of tensor data",
        ),
        _one(
            "offset whose end wraps",
            offset_in_data=2**64 - 32,
            offset=at_offset,
            found=f"data offset {2**64 - 32} and 32 bytes",
            expected="within the 32 bytes of tensor data",
        ),
        _one(
            "data cut by one byte",
            data=bytes(31),
            offset=at_offset,
            found="data offset 0 and 32 bytes",
            expected="within the 31 bytes of tensor data",
        ),
        hostile_bytes(
            "no data at all",
            head(1, 1) + ARCHITECTURE + tensor_line("t", (8,), 0, 0),
            offset=at_offset,
            found="data offset 0 and 32 bytes",
            expected="within the 0 bytes of tensor data",
        ),
        _several(
            "tensors on one another",
            [first, tensor_line("b", (8,), 0, 0)],
            bytes(64),
            offset=second_offset,
            found="data offset 0, an overlap after tensor 'a'",
            expected="data offset 32",
        ),
        _several(
            "tensor that starts inside another",
            [tensor_line("a", (16,), 0, 0), tensor_line("b", (8,), 0, 32)],
            bytes(64),
            offset=second_offset,
            found="data offset 32, an overlap after tensor 'a'",
            expected="data offset 64",
        ),
        _several(
            "huge padding between tensors",
            [first, tensor_line("b", (8,), 0, 2**20)],
            bytes(2**20 + 32),
            offset=second_offset,
            found=f"data offset {2**20}, a gap after tensor 'a'",
            expected="data offset 32",
        ),
        _one(
            "huge padding before the first tensor",
            offset_in_data=2**20,
            data=bytes(2**20 + 32),
            offset=at_offset,
            found=f"data offset {2**20}, a gap",
            expected="data offset 0",
        ),
        hostile_bytes(
            "cut in the tensor list",
            (head(1, 1) + ARCHITECTURE + tensor_line("t", (8,), 0, 0))[:-5],
            offset=LIST,
            found="28 bytes left",
            expected="33 or more",
        ),
        hostile_bytes(
            "cut in a tensor's offset",
            (head(1, 1) + ARCHITECTURE + tensor_line("long.name", (8,), 0, 0))[:-5],
            offset=at_offset + 8,
            found="3 bytes left",
            expected="8 or more",
        ),
    ]


CASES = [*_names(), *_dimensions(), *_types(), *_offsets()]
