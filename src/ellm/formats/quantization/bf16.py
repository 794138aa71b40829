"""BF16: the upper half of a float32, little-endian."""

from __future__ import annotations

import numpy as np

from ellm.formats.quantization.format import Bytes, Floats, QuantizedFormat


def _decode(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


BF16 = QuantizedFormat("bf16", 30, 1, 2, _decode, "bfloat16 as in TensorFlow")
