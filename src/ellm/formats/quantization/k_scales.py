"""The 12 bytes in which Q4_K and Q5_K pack eight 6-bit scales and eight 6-bit minima."""

from __future__ import annotations

import numpy as np

from ellm.formats.quantization.format import Bytes, Floats, half_floats

SUB_BLOCKS = 8


def scales_and_minima(blocks: Bytes) -> tuple[Floats, Floats]:
    """Return d * scale and dmin * minimum of each sub-block, both float32 (n, 8, 1).

    Bytes 0..3 hold scales 0..3 and bytes 4..7 minima 0..3 in their lower six bits; bytes 8..11
    hold the lower four bits of scales (low half) and minima (high half) 4..7, whose upper two bits
    are the upper two bits of bytes 0..7.

    Source: ggml-quants.c get_scale_min_k4; block_q4_K and block_q5_K start with f16 d, f16 dmin.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate((first & 0x3F, (third & 0x0F) | ((first >> 2) & 0x30)), axis=1)
    minima = np.concatenate((second & 0x3F, (third >> 4) | ((second >> 2) & 0x30)), axis=1)
    return (
        (half_floats(blocks, 0) * scales.astype(np.float32))[..., None],
        (half_floats(blocks, 2) * minima.astype(np.float32))[..., None],
    )
