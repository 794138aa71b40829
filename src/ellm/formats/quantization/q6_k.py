"""Q6_K: 256 weights in 16 sub-blocks of 16, d * scale * (q - 32), q of 6 bits."""

from __future__ import annotations

import numpy as np

from ellm.formats.quantization.format import Bytes, Floats, QuantizedFormat, half_floats, nibbles

_SUB_BLOCKS = 16
_SHIFTS = np.arange(0, 8, 2, dtype=np.uint8)[None, None, :, None]


def _decode(blocks: Bytes) -> Floats:
    # Each half of 128 weights has 64 bytes of lower bits (four quarters of 32 weights: the low
    # nibbles of both 32-byte runs, then the high ones) and 32 bytes with 2 upper bits per quarter.
    low = nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _SHIFTS) & 3
    q = (low | (high << 4)).reshape(-1, _SUB_BLOCKS, 16).astype(np.float32) - np.float32(32)
    scales = half_floats(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scales[..., None] * q).reshape(-1, 256)


Q6_K = QuantizedFormat(
    "q6_k",
    14,
    256,
    210,
    _decode,
    "ggml-common.h block_q6_K: 128 B low bits, 64 B high bits, 16 int8 scales, f16 d",
)
