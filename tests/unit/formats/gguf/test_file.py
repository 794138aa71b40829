"""Valid GGUF files are read as they were written, and changes under the reader's feet are seen."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ellm.errors import InvalidModelError, ModelNotFoundError
from ellm.formats.gguf import GgufFile
from tests.malformed.hostile_files import shard, shard_path, write_shards
from tests.support.gguf_builder import TENSOR_TYPES, GgufBuilder, Kind

RNG = np.random.default_rng(7)


def random_bytes(count: int) -> bytes:
    return RNG.integers(0, 256, count, dtype=np.uint8).tobytes()


def write(path: Path, builder: GgufBuilder) -> Path:
    path.write_bytes(builder.build())
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    builder = GgufBuilder().add("general.architecture", "llama")
    builder.tensor("a", "f32", (8,), bytes(range(32)))
    builder.tensor("b", "q8_0", (3, 64), random_bytes(3 * 2 * 34))
    return write(tmp_path / "model.gguf", builder)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_tensors_of_every_type_come_back(version: int, alignment: int, tmp_path: Path) -> None:
    builder = GgufBuilder(version=version, alignment=alignment)
    data = {}
    for name, (_, elements, block_bytes) in TENSOR_TYPES.items():
        data[name] = random_bytes(3 * 2 * block_bytes)
        builder.tensor(f"t.{name}", name, (3, 2 * elements), data[name])
    model = GgufFile.open(write(tmp_path / "m.gguf", builder))
    assert model.version == version
    for name, (_, elements, block_bytes) in TENSOR_TYPES.items():
        info = model.tensors[f"t.{name}"]
        assert (info.name, info.type_name) == (f"t.{name}", name)
        assert info.shape == (3, 2 * elements)
        assert info.nbytes == 6 * block_bytes
        assert info.offset % alignment == 0
        assert model.read(info.name).tobytes() == data[name]


@pytest.mark.parametrize("shape", [(5,), (2, 5), (3, 2, 5), (4, 3, 2, 5)])
def test_shape_is_in_numpy_order(shape: tuple[int, ...], tmp_path: Path) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32)
    builder = GgufBuilder().tensor("t", "f32", shape, values.tobytes())
    model = GgufFile.open(write(tmp_path / "m.gguf", builder))
    assert model.tensors["t"].shape == shape
    np.testing.assert_array_equal(model.read("t").view(np.float32), values)


def test_tensors_may_lie_in_another_order_than_listed(tmp_path: Path) -> None:
    builder = GgufBuilder().tensor("a", "f32", (8,), bytes(32)).tensor("b", "f32", (8,), b"b" * 32)
    builder._lines.reverse()
    model = GgufFile.open(write(tmp_path / "m.gguf", builder))
    assert list(model.tensors) == ["b", "a"]
    assert model.read("b").tobytes() == b"b" * 32


def test_last_tensor_needs_no_padding(tmp_path: Path) -> None:
    builder = GgufBuilder().tensor("t", "f32", (3,), b"x" * 12)
    path = tmp_path / "m.gguf"
    path.write_bytes(builder.build().removesuffix(bytes(20)))
    assert GgufFile.open(path).read("t").tobytes() == b"x" * 12


def test_file_without_keys_and_tensors_is_valid(tmp_path: Path) -> None:
    model = GgufFile.open(write(tmp_path / "m.gguf", GgufBuilder()))
    assert (dict(model.metadata), dict(model.tensors)) == ({}, {})


def test_header_larger_than_the_read_window(tmp_path: Path) -> None:
    tokens = [f"token {i} \u00e9\u4e2d" * (1 + i % 5) for i in range(50_000)]
    builder = GgufBuilder().add("tokens", tokens).add("scores", np.arange(70_000, dtype=np.float64))
    model = GgufFile.open(write(tmp_path / "m.gguf", builder.tensor("t", "f32", (1,), b"last")))
    assert model.metadata["tokens"] == tokens
    np.testing.assert_array_equal(model.metadata["scores"], np.arange(70_000))
    assert model.read("t").tobytes() == b"last"


def test_large_vocabulary_costs_little_more_than_its_strings(tmp_path: Path) -> None:
    raw = [f"\u0120token{i}".encode() for i in range(262_144)]
    path = write(tmp_path / "m.gguf", GgufBuilder().add("tokenizer.ggml.tokens", raw))

    def seconds(run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    opening = min(seconds(lambda: GgufFile.open(path)) for _ in range(5))
    # What any reader must do at least: make the list. A reader that ran Python per string would
    # take over ten times as long as this.
    listing = min(seconds(lambda: [str(token, "utf-8") for token in raw]) for _ in range(5))
    assert opening < 5 * listing


def test_offset_of_each_value_is_kept(model: Path) -> None:
    opened = GgufFile.open(model)
    offset = opened.metadata_offsets["general.architecture"]
    assert model.read_bytes()[offset + 8 : offset + 13] == b"llama"


def test_link_to_a_model_is_followed(model: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    assert GgufFile.open(link).read("a").tobytes() == bytes(range(32))


def test_path_that_is_not_utf8(model: Path, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.gguf"))
    model.rename(path)
    opened = GgufFile.open(path)
    assert opened.tensors["a"].path == path
    path.write_bytes(b"FUGG")
    with pytest.raises(InvalidModelError) as caught:
        GgufFile.open(path)
    assert caught.value.path == str(path)


def test_missing_tensor_is_named(model: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"'output\.weight': found 2 tensors without it"):
        GgufFile.open(model).read("output.weight")


class TestShards:
    def test_joined_in_order(self, tmp_path: Path) -> None:
        parts = [
            shard(0, 3, 4, "a").add("general.name", "set"),
            shard(1, 3, 4, "b", "c", architecture=None),
            shard(2, 3, 4, architecture=None).tensor("d", "f32", (8,), b"d" * 32),
        ]
        model = GgufFile.open(write_shards(tmp_path, *parts))
        assert model.metadata["general.name"] == "set"
        assert [one.path for one in model.shards] == [
            shard_path(tmp_path, number, 3) for number in (1, 2, 3)
        ]
        assert list(model.tensors) == ["a", "b", "c", "d"]
        assert model.tensors["d"].path == shard_path(tmp_path, 3, 3)
        assert model.read("d").tobytes() == b"d" * 32

    def test_each_shard_has_its_own_alignment(self, tmp_path: Path) -> None:
        first = GgufBuilder(alignment=64)
        for key, value in (("split.no", 0), ("split.count", 2), ("split.tensors.count", 2)):
            first.add(key, value)
        first.tensor("a", "f32", (8,), b"a" * 32)
        second = shard(1, 2, 2, architecture=None).tensor("b", "f32", (8,), b"b" * 32)
        model = GgufFile.open(write_shards(tmp_path, first, second))
        assert model.read("a").tobytes() == b"a" * 32
        assert model.read("b").tobytes() == b"b" * 32

    def test_set_of_one_needs_no_name(self, tmp_path: Path) -> None:
        path = write(tmp_path / "model.gguf", shard(0, 1, 1, "a"))
        assert list(GgufFile.open(path).tensors) == ["a"]

    def test_later_shard_counts_for_the_fingerprint(self, tmp_path: Path) -> None:
        second = shard(1, 2, 2, "b")
        path = write_shards(tmp_path, shard(0, 2, 2, "a"), second)
        before = GgufFile.open(path).fingerprint
        write(shard_path(tmp_path, 2, 2), second.add("general.note", "x"))
        assert GgufFile.open(path).fingerprint != before


class TestChanges:
    """The file is changed between `open` and `read`."""

    def test_cut(self, model: Path) -> None:
        opened = GgufFile.open(model)
        os.truncate(model, opened.tensors["b"].offset + 7)
        with pytest.raises(InvalidModelError, match="changed after its header was read"):
            opened.read("b")

    def test_replaced_by_an_equal_file(self, model: Path) -> None:
        opened = GgufFile.open(model)
        other = model.with_name("other.gguf")
        other.write_bytes(model.read_bytes())
        other.replace(model)
        with pytest.raises(InvalidModelError, match="another file at this path"):
            opened.read("a")

    def test_written_in_place(self, model: Path) -> None:
        opened = GgufFile.open(model)
        with model.open("r+b") as file:
            file.seek(opened.tensors["a"].offset)
            file.write(b"changed!")
        os.utime(model, ns=(0, opened.shards[0].mtime_ns + 1))
        with pytest.raises(InvalidModelError, match="changed after its header was read"):
            opened.read("a")

    def test_removed(self, model: Path) -> None:
        opened = GgufFile.open(model)
        model.unlink()
        with pytest.raises(InvalidModelError, match="No such file"):
            opened.read("a")

    def test_replaced_by_a_fifo_does_not_block(self, model: Path) -> None:
        opened = GgufFile.open(model)
        model.unlink()
        os.mkfifo(model)
        with pytest.raises(InvalidModelError, match="changed after its header was read"):
            opened.read("a")

    def test_fingerprint_of_a_changed_file_is_refused(self, model: Path) -> None:
        opened = GgufFile.open(model)
        os.truncate(model, 100)
        with pytest.raises(InvalidModelError, match="changed after its header was read"):
            _ = opened.fingerprint


class TestFingerprint:
    def test_equal_for_the_same_file(self, model: Path) -> None:
        assert GgufFile.open(model).fingerprint == GgufFile.open(model).fingerprint

    def test_changes_with_the_modification_time(self, model: Path) -> None:
        before = GgufFile.open(model).fingerprint
        os.utime(model, ns=(0, 1_000_000_000))
        assert GgufFile.open(model).fingerprint != before

    def test_changes_with_the_header(self, tmp_path: Path) -> None:
        prints = set()
        for value in (1, 2):
            path = write(tmp_path / "m.gguf", GgufBuilder().add("k", value, Kind.U32))
            os.utime(path, ns=(0, 0))
            prints.add(GgufFile.open(path).fingerprint)
        assert len(prints) == 2


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such model file"):
        GgufFile.open(tmp_path / "nothing.gguf")
