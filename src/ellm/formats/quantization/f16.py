"""F16: IEEE half precision, little-endian."""

from __future__ import annotations

from ellm.formats.quantization.format import Bytes, Floats, QuantizedFormat, half_floats


def _decode(blocks: Bytes) -> Floats:
    return half_floats(blocks, 0)


F16 = QuantizedFormat("f16", 1, 1, 2, _decode, "IEEE 754 binary16")
