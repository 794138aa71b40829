"""Whatever is written is read back; whatever is broken ends in an `EllmError`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ellm.errors import EllmError
from ellm.formats.gguf import GgufFile
from tests.support.gguf_builder import GgufBuilder, Kind, entry, gguf

_BITS = {Kind.U8: 8, Kind.U16: 16, Kind.U32: 32, Kind.U64: 64}
_SIGNED_BITS = {Kind.I8: 8, Kind.I16: 16, Kind.I32: 32, Kind.I64: 64}

_CHARACTERS = st.characters(exclude_categories=["Cs"])
_KEYS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40).filter(
    lambda key: key != "general.alignment" and not key.startswith("split.")
)


def _scalars(kind: Kind) -> st.SearchStrategy[object]:
    if kind in _BITS:
        return st.integers(0, 2 ** _BITS[kind] - 1)
    if kind in _SIGNED_BITS:
        half = 2 ** (_SIGNED_BITS[kind] - 1)
        return st.integers(-half, half - 1)
    if kind is Kind.BOOL:
        return st.booleans()
    if kind is Kind.STRING:
        return st.text(_CHARACTERS, max_size=60)
    return st.floats(width=32 if kind is Kind.F32 else 64)


_ELEMENT_KINDS = st.sampled_from([kind for kind in Kind if kind is not Kind.ARRAY])


@st.composite
def _values(draw: st.DrawFn) -> tuple[Kind, object]:
    element = draw(_ELEMENT_KINDS)
    if draw(st.booleans()):
        return element, draw(_scalars(element))
    return Kind.ARRAY, (element, draw(st.lists(_scalars(element), max_size=20)))


def _assert_same(read: object, kind: Kind, written: object) -> None:
    if kind is not Kind.ARRAY:
        np.testing.assert_equal(read, written)
        expected = {Kind.STRING: str, Kind.BOOL: bool, Kind.F32: float, Kind.F64: float}
        assert type(read) is expected.get(kind, int)
        return
    element, values = written  # type: ignore[misc]
    if element is Kind.STRING:
        assert read == values
        return
    assert isinstance(read, np.ndarray)
    dtype = (
        "bool" if element is Kind.BOOL else element.name.replace("U", "uint").replace("I", "int")
    )
    assert read.dtype == np.dtype(dtype.replace("F", "float"))
    np.testing.assert_array_equal(read, np.array(values, dtype=read.dtype))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "model.gguf"


@given(st.dictionaries(_KEYS, _values(), max_size=8), st.sampled_from([2, 3]))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_metadata_comes_back_as_written(
    scratch: Path, metadata: dict[str, tuple[Kind, object]], version: int
) -> None:
    entries = [entry(key, kind, value) for key, (kind, value) in metadata.items()]
    scratch.write_bytes(gguf(entries, version=version))
    read = GgufFile.open(scratch).metadata
    assert list(read) == list(metadata)
    for key, (kind, value) in metadata.items():
        _assert_same(read[key], kind, value)


def _valid_file() -> bytes:
    builder = GgufBuilder().add("general.architecture", "llama")
    builder.add("llama.block_count", 2).add("llama.rope.freq_base", 10000.0).add("flag", True)
    builder.add("tokenizer.ggml.tokens", ["a", "b", "\u0120the", ""])
    builder.add("tokenizer.ggml.scores", [0.5, -1.0, 3.25, 0.0])
    builder.add("general.alignment", 32, Kind.U32)
    builder.tensor("token_embd.weight", "q8_0", (4, 32), bytes(4 * 34))
    return builder.tensor("output_norm.weight", "f32", (8,), bytes(32)).build()


VALID = _valid_file()
# Few tensor bytes and many header bytes, where a change matters.
_FLIPS = st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(1, 255)), max_size=6)


@given(_FLIPS, st.integers(0, len(VALID)), st.binary(max_size=40))
@settings(
    deadline=None, max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damaged_file_is_read_or_refused(
    scratch: Path, flips: list[tuple[int, int]], size: int, tail: bytes
) -> None:
    data = bytearray(VALID)
    for at, mask in flips:
        data[at] ^= mask
    scratch.write_bytes(bytes(data[:size]) + tail)
    try:
        model = GgufFile.open(scratch)
    except EllmError:
        return
    for name, info in model.tensors.items():
        assert info.offset + info.nbytes <= scratch.stat().st_size
        assert model.read(name).nbytes == info.nbytes


@pytest.mark.parametrize("value", [0, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF])
def test_extreme_number_anywhere_is_read_or_refused(scratch: Path, value: int) -> None:
    refused = []
    for at in range(len(VALID) - 4):
        scratch.write_bytes(VALID[:at] + value.to_bytes(4, "little") + VALID[at + 4 :])
        try:
            GgufFile.open(scratch)
        except EllmError as error:
            refused.append(str(error))
    assert len(refused) > 24
    assert all(str(scratch) in message for message in refused)
