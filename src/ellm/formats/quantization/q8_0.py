"""Q8_0: 32 weights d * q, q a signed byte."""

from __future__ import annotations

import numpy as np

from ellm.formats.quantization.format import Bytes, Floats, QuantizedFormat, half_floats


def _decode(blocks: Bytes) -> Floats:
    return half_floats(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


Q8_0 = QuantizedFormat("q8_0", 8, 32, 34, _decode, "ggml-common.h block_q8_0: f16 d, 32 B q")
