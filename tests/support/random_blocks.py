"""Random but sane weights in any GGUF format: every bit field is used, sizes are chosen."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ellm.formats.quantization import FORMATS

# Byte offsets of a block's float16 scales, and how many of them the minimum is away from zero so
# that weights are centred: the mean of the format's unsigned q.
_SCALE_OFFSET = {
    "q4_0": 0,
    "q4_1": 0,
    "q5_0": 0,
    "q5_1": 0,
    "q8_0": 0,
    "q4_k": 0,
    "q5_k": 0,
    "q6_k": 208,
}
_MINIMUM = {"q4_1": -7.5, "q5_1": -15.5, "q4_k": 7.5, "q5_k": 15.5}  # factor of d, at offset 2


def random_weights(
    type_name: str, shape: tuple[int, ...], std: float, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Return the raw bytes of a tensor whose weights have about this standard deviation."""
    count = int(np.prod(shape))
    normal = (rng.standard_normal(count) * std).astype(np.float32)
    if type_name == "f32":
        return normal.view(np.uint8)
    if type_name == "f16":
        return normal.astype(np.float16).view(np.uint8)
    if type_name == "bf16":
        return (normal.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    known = FORMATS[type_name]
    blocks = rng.integers(0, 256, (count // known.block_weights, known.block_bytes), dtype=np.uint8)
    scales = rng.uniform(0.5, 1.5, len(blocks)) * rng.choice([-1, 1], len(blocks))
    _put_scales(type_name, blocks, scales)
    _put_scales(type_name, blocks, scales * std / known.decode(blocks).std())
    return blocks.reshape(-1)


def _put_scales(type_name: str, blocks: NDArray[np.uint8], scales: NDArray[np.float64]) -> None:
    offset = _SCALE_OFFSET[type_name]
    blocks[:, offset : offset + 2] = _f16_bytes(scales)
    if type_name in _MINIMUM:
        blocks[:, 2:4] = _f16_bytes(scales * _MINIMUM[type_name])


def _f16_bytes(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    return values.astype("<f2").view(np.uint8).reshape(-1, 2)
