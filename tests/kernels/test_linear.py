"""Weight kernels: repacking is exact, every ISA gives the scalar bits, results are the product."""

from __future__ import annotations

import numpy as np
import pytest

from ellm import native
from ellm.formats.quantization import FORMATS, decode
from tests.support.random_blocks import random_weights

ISAS = native.supported_isas()
INTEGER = {entry["name"]: entry["integer_codes"] for entry in native.weight_formats()}
# One tile, a part of one, several; the shortest row a format has, odd numbers of groups, long rows.
ROWS = (1, 15, 16, 33)
BLOCKS = (1, 2, 3, 7)


def image_of(name, data, rows, cols):
    image = np.zeros(native.image_bytes(name, rows, cols), dtype=np.uint8)
    native.repack(name, rows, cols, data, image, [0])
    return image


def make(name, rows, blocks, seed):
    cols = blocks * max(FORMATS[name].block_weights, 5)
    rng = np.random.default_rng(seed)
    data = random_weights(name, (rows, cols), 0.5, rng)
    return data, cols, rng


def test_native_formats_are_the_python_formats():
    found = {
        (e["name"], e["ggml_type"], e["block_weights"], e["block_bytes"])
        for e in native.weight_formats()
    }
    assert found == {
        (f.name, f.ggml_type, f.block_weights, f.block_bytes) for f in FORMATS.values()
    }


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("blocks", BLOCKS)
def test_repacking_loses_nothing(name, rows, blocks):
    data, cols, _ = make(name, rows, blocks, seed=rows * 31 + blocks)
    image = image_of(name, data, rows, cols)
    np.testing.assert_array_equal(
        native.decode(name, image, rows, cols), decode(name, data, (rows, cols))
    )


@pytest.mark.parametrize("name", FORMATS)
def test_image_is_no_larger_than_the_file(name):
    rows, cols = 64, 2048
    file_bytes = rows * cols // FORMATS[name].block_weights * FORMATS[name].block_bytes
    assert native.image_bytes(name, rows, cols) == file_bytes


def quantized(x):
    """Activations as the integer kernels see them, in float64."""
    groups = x.astype(np.float64).reshape(x.shape[0], -1, 32)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    centre, scale = (low + high) / 2, (high - low) / 254
    codes = np.rint(np.divide(groups - centre, scale, out=np.zeros_like(groups), where=scale > 0))
    return (codes * scale + centre).reshape(x.shape), scale.repeat(32, -1).reshape(x.shape)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 16, 33])
@pytest.mark.parametrize("blocks", BLOCKS)
def test_product_is_right(name, isa, rows, blocks):
    data, cols, rng = make(name, rows, blocks, seed=rows * 7 + blocks)
    x = rng.standard_normal((9, cols), dtype=np.float32)
    y = native.multiply(name, isa, image_of(name, data, rows, cols), x, rows)
    weights = decode(name, data, (rows, cols)).astype(np.float64)
    inputs, steps = quantized(x) if INTEGER[name] else (x.astype(np.float64), np.zeros_like(x))
    # Each of the cols fused steps rounds once; scales and centres are up to four roundings. A code
    # that lies within rounding of a half may fall to either side: one step of its scale.
    magnitude = (np.abs(inputs) + 127 * steps) @ np.abs(weights).T
    bound = np.finfo(np.float32).eps * (cols + 4) * magnitude
    if INTEGER[name]:
        near_half = np.abs(np.abs(x - inputs) / steps - 0.5) < 1e-4
        bound = bound + (near_half * steps) @ np.abs(weights).T
    assert np.all(np.abs(y - inputs @ weights.T) <= bound + 1e-30)


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "scalar"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("blocks", BLOCKS)
def test_every_isa_gives_the_scalar_bits(name, isa, rows, blocks):
    data, cols, rng = make(name, rows, blocks, seed=rows + blocks * 13)
    image = image_of(name, data, rows, cols)
    x = (rng.standard_normal((11, cols)) * 10 ** rng.uniform(-3, 3, (11, 1))).astype(np.float32)
    expected = native.multiply(name, "scalar", image, x, rows)
    np.testing.assert_array_equal(native.multiply(name, isa, image, x, rows), expected)
    np.testing.assert_array_equal(
        native.multiply(name, isa, image, x, rows, expanded=True), expected
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows_per_call", range(1, 9))
def test_rows_do_not_change_each_other(name, isa, rows_per_call):
    data, cols, rng = make(name, 33, 3, seed=5)
    image = image_of(name, data, 33, cols)
    x = rng.standard_normal((17, cols), dtype=np.float32)
    np.testing.assert_array_equal(
        native.multiply(name, isa, image, x, 33, rows_per_call=rows_per_call),
        native.multiply(name, isa, image, x, 33, rows_per_call=1),
    )


@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", [name for name in FORMATS if INTEGER[name]])
def test_extreme_activations_stay_exact(name, isa, expanded):
    data, cols, _ = make(name, 16, 1, seed=9)
    image = image_of(name, data, 16, cols)
    x = np.zeros((4, cols), dtype=np.float32)
    x[1] = 1e30
    x[2] = -3e-30
    x[3, ::2] = 127.0
    x[3, 1::2] = -127.0
    y = native.multiply(name, isa, image, x, 16, expanded=expanded)
    assert np.all(y[0] == 0)
    np.testing.assert_array_equal(y, native.multiply(name, "scalar", image, x, 16))


@pytest.mark.parametrize("offset", [0, 1, 3, 17])
@pytest.mark.parametrize("isa", ISAS)
def test_misaligned_images_give_the_same_bits(isa, offset):
    data, cols, rng = make("q6_k", 20, 2, seed=3)
    image = image_of("q6_k", data, 20, cols)
    shifted = np.zeros(image.size + 64, dtype=np.uint8)
    shifted[offset : offset + image.size] = image
    x = rng.standard_normal((3, cols), dtype=np.float32)
    np.testing.assert_array_equal(
        native.multiply("q6_k", isa, shifted[offset : offset + image.size], x, 20),
        native.multiply("q6_k", isa, image, x, 20),
    )
