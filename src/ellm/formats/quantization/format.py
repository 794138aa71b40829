"""What a weight format is: its block layout and how to decode it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class QuantizedFormat:
    """One GGUF weight format.

    Attributes:
        name: GGUF's name in lower case, as in `TensorInfo.type_name`.
        ggml_type: The number GGUF stores for it.
        block_weights: Consecutive weights of a row that share one block.
        block_bytes: Size of a block.
        decode: Blocks uint8 (n, block_bytes) to weights float32 (n, block_weights).
        source: Where the layout is defined.
    """

    name: str
    ggml_type: int
    block_weights: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]
    source: str


def half_floats(blocks: Bytes, offset: int) -> Floats:
    """Return the little-endian float16 at byte `offset` of every block as float32 (n, 1)."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2").astype(np.float32)


def nibbles(packed: Bytes) -> Bytes:
    """Return (n, m, 2w) low then high 4-bit halves of bytes (n, m, w)."""
    return np.concatenate((packed & 0x0F, packed >> 4), axis=-1)


def bit_rows(packed: Bytes) -> Bytes:
    """Return (n, 8w) bits of little-endian bit fields (n, w), lowest bit first."""
    return np.unpackbits(packed, axis=-1, bitorder="little")
