"""F32: plain little-endian float32."""

from __future__ import annotations

import numpy as np

from ellm.formats.quantization.format import Bytes, Floats, QuantizedFormat


def _decode(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32, copy=False)


F32 = QuantizedFormat("f32", 0, 1, 4, _decode, "IEEE 754 binary32")
