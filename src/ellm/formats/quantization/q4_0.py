"""Q4_0: 32 weights d * (q - 8), q of 4 bits."""

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
    q = nibbles(blocks[:, 2:]).astype(np.float32)
    return half_floats(blocks, 0) * (q - np.float32(8))


Q4_0 = QuantizedFormat("q4_0", 2, 32, 18, _decode, "ggml-common.h block_q4_0: f16 d, 16 B q")
