"""Q5_0: 32 weights d * (q - 16), q of 5 bits whose fifth bits lie apart."""

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
    q = nibbles(blocks[:, 6:]) | (bit_rows(blocks[:, 2:6]) << 4)
    return half_floats(blocks, 0) * (q.astype(np.float32) - np.float32(16))


Q5_0 = QuantizedFormat(
    "q5_0", 6, 32, 22, _decode, "ggml-common.h block_q5_0: f16 d, 4 B fifth bits, 16 B q"
)
