"""Q4_1: 32 weights d * q + m, q of 4 bits."""

from __future__ import annotations

import numpy as np

from ellm.formats.quantization.format import (
    Bytes,
    Floats,
    QuantizedFormat,
    half_floats,
    nibbles,
)


def _decode(blocks: Bytes) -> Floats:
    q = nibbles(blocks[:, 4:]).astype(np.float32)
    return half_floats(blocks, 0) * q + half_floats(blocks, 2)


Q4_1 = QuantizedFormat("q4_1", 3, 32, 20, _decode, "ggml-common.h block_q4_1: f16 d, f16 m, 16 B q")
