"""Q5_1: 32 weights d * q + m, q of 5 bits whose fifth bits lie apart."""

from __future__ import annotations

import numpy as np

from ellm.formats.quantization.format import (
    Bytes,
    Floats,
    QuantizedFormat,
    bit_rows,
    half_floats,
    nibbles,
)


def _decode(blocks: Bytes) -> Floats:
    q = nibbles(blocks[:, 8:]) | (bit_rows(blocks[:, 4:8]) << 4)
    return half_floats(blocks, 0) * q.astype(np.float32) + half_floats(blocks, 2)


Q5_1 = QuantizedFormat(
    "q5_1", 7, 32, 24, _decode, "ggml-common.h block_q5_1: f16 d, f16 m, 4 B fifth bits, 16 B q"
)
