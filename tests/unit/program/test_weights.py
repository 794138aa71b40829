"""The cached image of repacked weights: made once, checked, and never trusted when odd."""

from __future__ import annotations

import os

import numpy as np
import pytest

from ellm.program.weights import load_weights
from tests.support.native_models import TinySource
from tests.support.tiny_models import tiny_model


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ELLM_CACHE", str(tmp_path))
    return tmp_path / "images"


@pytest.fixture
def model():
    return tiny_model("llama", ("q4_k", "q8_0"))


class CountingSource(TinySource):
    def __init__(self, model):
        super().__init__(model)
        self.reads = 0

    def read(self, name):
        self.reads += len(self.tensors[name].shape) == 2
        return super().read(name)


def matrices(weights, model):
    names = [name for name, tensor in model.tensors.items() if len(tensor.shape) == 2]
    return {name: weights.matrix(name).copy() for name in names}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, image in expected.items():
        np.testing.assert_array_equal(found[name], image)


def test_second_start_reads_no_matrix(cache, model):
    first = matrices(load_weights(model.program, TinySource(model), cpus=[0]), model)
    source = CountingSource(model)
    again = matrices(load_weights(model.program, source, cpus=[0]), model)
    assert source.reads == 0
    assert_same(again, first)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("damage", ["truncate", "grow", "header", "empty", "directory"])
def test_odd_image_is_made_again(cache, model, damage):
    expected = matrices(load_weights(model.program, TinySource(model), cpus=[0]), model)
    (path,) = cache.iterdir()
    data = bytearray(path.read_bytes())
    path.unlink()
    match damage:
        case "truncate":
            path.write_bytes(data[:-1])
        case "grow":
            path.write_bytes(data + b"x")
        case "header":
            data[20] ^= 1
            path.write_bytes(data)
        case "empty":
            path.write_bytes(b"")
        case "directory":
            path.mkdir()
    source = CountingSource(model)
    if damage == "directory":
        with pytest.raises(IsADirectoryError):
            load_weights(model.program, source, cpus=[0])
        return
    again = matrices(load_weights(model.program, source, cpus=[0]), model)
    assert source.reads == len(expected)
    assert_same(again, expected)


def test_copying_to_memory_gives_the_same_image(cache, model):
    mapped = matrices(load_weights(model.program, TinySource(model), cpus=[0]), model)
    fresh = load_weights(model.program, TinySource(model), cpus=[0], mapped=False)
    assert_same(matrices(fresh, model), mapped)
    for path in cache.iterdir():
        path.unlink()
    assert_same(matrices(fresh, model), mapped)


def test_unwritable_cache_still_loads(tmp_path, monkeypatch, model, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    monkeypatch.setenv("ELLM_CACHE", str(blocked))
    found = matrices(load_weights(model.program, TinySource(model), cpus=[0]), model)
    assert "every start will repack" in caplog.text
    monkeypatch.setenv("ELLM_CACHE", str(tmp_path / "fine"))
    assert_same(found, matrices(load_weights(model.program, TinySource(model), cpus=[0]), model))


def test_full_disk_still_loads(cache, model, caplog, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    weights = load_weights(model.program, TinySource(model), cpus=[0])
    assert "No space left" in caplog.text
    assert list(cache.iterdir()) == []
    assert weights.image_bytes > 0


def test_failure_while_repacking_leaves_no_file(cache, model):
    class Failing(TinySource):
        def read(self, name):
            if name.startswith("blk.1"):
                raise RuntimeError("gone")
            return super().read(name)

    with pytest.raises(RuntimeError):
        load_weights(model.program, Failing(model), cpus=[0])
    assert list(cache.iterdir()) == []


@pytest.mark.usefixtures("cache")
def test_progress_reaches_the_end(model):
    seen = []
    load_weights(
        model.program,
        TinySource(model),
        cpus=[0],
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
