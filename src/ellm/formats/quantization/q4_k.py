"""Q4_K: 256 weights in 8 sub-blocks of 32, d * scale * q - dmin * minimum, q of 4 bits."""

from __future__ import annotations

import numpy as np

from ellm.formats.quantization.format import Bytes, Floats, QuantizedFormat, nibbles
from ellm.formats.quantization.k_scales import SUB_BLOCKS, scales_and_minima


def _decode(blocks: Bytes) -> Floats:
    scales, minima = scales_and_minima(blocks)
    q = nibbles(blocks[:, 16:].reshape(-1, SUB_BLOCKS // 2, 32)).reshape(-1, SUB_BLOCKS, 32)
    return (scales * q.astype(np.float32) - minima).reshape(-1, 256)


Q4_K = QuantizedFormat(
    "q4_k", 12, 256, 144, _decode, "ggml-common.h block_q4_K: f16 d, f16 dmin, 12 B scales, 128 B q"
)
