"""Decoders equal the `gguf` package's to the bit, for any bytes."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from ellm.errors import InvalidModelError, UnsupportedError
from ellm.formats.quantization import FORMATS, decode

ALL = pytest.mark.parametrize("name", FORMATS)


@ALL
def test_block_layout_matches_ggml(name: str) -> None:
    known = FORMATS[name]
    ggml_type = GGMLQuantizationType(known.ggml_type)
    assert ggml_type.name.lower() == name
    assert GGML_QUANT_SIZES[ggml_type] == (known.block_weights, known.block_bytes)


@ALL
@pytest.mark.parametrize("blocks_per_row", [1, 3])
def test_random_blocks_decode_to_the_same_bits_as_gguf(name: str, blocks_per_row: int) -> None:
    known = FORMATS[name]
    rows = 67
    data = np.random.default_rng(blocks_per_row).integers(
        0, 256, (rows, blocks_per_row * known.block_bytes), dtype=np.uint8
    )
    with np.errstate(all="ignore"):
        ours = decode(name, data.reshape(-1), (rows, blocks_per_row * known.block_weights))
        oracle = quants.dequantize(data, GGMLQuantizationType(known.ggml_type))
    assert ours.dtype == np.float32
    finite = np.isfinite(oracle)
    assert finite.mean() > 0.5
    assert np.array_equal(ours.view(np.uint32)[finite], oracle.view(np.uint32)[finite])
    assert np.array_equal(np.isnan(ours), np.isnan(oracle))
    assert np.array_equal(ours[~finite], oracle[~finite], equal_nan=True)


@ALL
def test_decode_refuses_a_byte_too_few_or_too_many(name: str) -> None:
    known = FORMATS[name]
    for nbytes in (known.block_bytes - 1, known.block_bytes + 1):
        with pytest.raises(InvalidModelError, match=f"{known.block_bytes} bytes"):
            decode(name, np.zeros(nbytes, np.uint8), (known.block_weights,))


def test_decode_refuses_rows_that_end_inside_a_block() -> None:
    with pytest.raises(InvalidModelError, match="multiple of 32"):
        decode("q4_0", np.zeros(36, np.uint8), (2, 33))


def test_decode_refuses_an_unknown_format() -> None:
    with pytest.raises(UnsupportedError, match="iq2_xxs"):
        decode("iq2_xxs", np.zeros(66, np.uint8), (256,))
