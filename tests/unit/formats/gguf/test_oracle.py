"""The reader agrees with the `gguf` package on files that either has written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

from ellm.formats.gguf import GgufFile
from tests.support.gguf_builder import TENSOR_TYPES
from tests.support.real_models import model_path
from tests.support.tiny_gguf import tiny_gguf

# gguf 0.19 has no encoder for these (its K formats only decode).
ENCODED = ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]


def assert_agrees_with_gguf(path: Path) -> None:
    ours, theirs = GgufFile.open(path), GGUFReader(path)
    fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert set(ours.metadata) == set(fields)
    for key, field in fields.items():
        value = ours.metadata[key]
        np.testing.assert_array_equal(
            value.tolist() if isinstance(value, np.ndarray) else value, field.contents()
        )
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.type_name == tensor.tensor_type.name.lower()
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert (info.offset, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
        np.testing.assert_array_equal(
            ours.read(tensor.name), tensor.data.reshape(-1).view(np.uint8)
        )


def test_file_of_the_gguf_writer(tmp_path: Path) -> None:
    path = tmp_path / "oracle.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_rope_freq_base(10000.0)
    writer.add_int64("some.big", -(2**40))
    writer.add_bool("some.flag", True)
    writer.add_token_list(["<s>", "\u0120the", "\u4e2d"])
    writer.add_token_scores([0.0, -1.5, 2.0])
    writer.add_token_types([3, 1, 1])
    values = np.random.default_rng(0).standard_normal((6, 96)).astype(np.float32)
    for name in ENCODED:
        ggml_type = GGMLQuantizationType[name.upper()]
        writer.add_tensor(f"w.{name}", quants.quantize(values, ggml_type), raw_dtype=ggml_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_agrees_with_gguf(path)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
def test_tiny_model_file(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf(architecture, list(TENSOR_TYPES)).build())
    assert_agrees_with_gguf(path)


@pytest.mark.models
def test_real_model_file() -> None:
    assert_agrees_with_gguf(model_path("smollm2-135m"))
