"""Every weight format by name, and the one way to decode a tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from ellm.errors import InvalidModelError, UnsupportedError
from ellm.formats.quantization.bf16 import BF16
from ellm.formats.quantization.f16 import F16
from ellm.formats.quantization.f32 import F32
from ellm.formats.quantization.format import Bytes, Floats, QuantizedFormat
from ellm.formats.quantization.q4_0 import Q4_0
from ellm.formats.quantization.q4_1 import Q4_1
from ellm.formats.quantization.q4_k import Q4_K
from ellm.formats.quantization.q5_0 import Q5_0
from ellm.formats.quantization.q5_1 import Q5_1
from ellm.formats.quantization.q5_k import Q5_K
from ellm.formats.quantization.q6_k import Q6_K
from ellm.formats.quantization.q8_0 import Q8_0

FORMATS: Mapping[str, QuantizedFormat] = MappingProxyType(
    {
        known.name: known
        for known in (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K)
    }
)


def decode(type_name: str, data: Bytes, shape: tuple[int, ...]) -> Floats:
    """Return the tensor of raw GGUF bytes as float32 of `shape`.

    Args:
        type_name: A key of `FORMATS`.
        data: The tensor's bytes, one-dimensional.
        shape: NumPy order; the last axis is the one that blocks run along.

    Raises:
        UnsupportedError: The format is unknown.
        InvalidModelError: The bytes do not hold exactly this shape.
    """
    known = FORMATS.get(type_name)
    if known is None:
        raise UnsupportedError(f"weight format {type_name!r}; known are {', '.join(FORMATS)}")
    if not shape or shape[-1] % known.block_weights:
        raise InvalidModelError(
            f"{type_name} tensor",
            found=f"shape {shape}",
            expected=f"rows of a multiple of {known.block_weights} weights",
        )
    expected_bytes = math.prod(shape) // known.block_weights * known.block_bytes
    if data.size != expected_bytes:
        raise InvalidModelError(
            f"{type_name} tensor of shape {shape}",
            found=f"{data.size} bytes",
            expected=f"{expected_bytes} bytes",
        )
    return known.decode(data.reshape(-1, known.block_bytes)).reshape(shape)
