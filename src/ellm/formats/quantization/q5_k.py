"""Q5_K: 256 weights in 8 sub-blocks of 32, d * scale * q - dmin * minimum, q of 5 bits."""

from __future__ import annotations

import numpy as np

from ellm.formats.quantization.format import (
    Bytes,
    Floats,
    QuantizedFormat,
    bit_rows,
    nibbles,
)
from ellm.formats.quantization.k_scales import SUB_BLOCKS, scales_and_minima


def _decode(blocks: Bytes) -> Floats:
    scales, minima = scales_and_minima(blocks)
    low = nibbles(blocks[:, 48:].reshape(-1, SUB_BLOCKS // 2, 32)).reshape(-1, SUB_BLOCKS, 32)
    # Bit s of fifth-bit byte l belongs to weight l of sub-block s.
    fifth = bit_rows(blocks[:, 16:48]).reshape(-1, 32, SUB_BLOCKS).transpose(0, 2, 1)
    q = low | (fifth << 4)
    return (scales * q.astype(np.float32) - minima).reshape(-1, 256)


Q5_K = QuantizedFormat(
    "q5_k",
    13,
    256,
    176,
    _decode,
    "ggml-common.h block_q5_K: f16 d, f16 dmin, 12 B scales, 32 B fifth bits, 128 B q",
)
