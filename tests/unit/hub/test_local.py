from __future__ import annotations

import os
from pathlib import Path

import pytest

from ellm.errors import ModelNotFoundError
from ellm.hub import local_models, locate_entry, resolve
from ellm.hub.local import locate_path
from ellm.hub.registry import REGISTRY

ENTRY = REGISTRY["smollm2-135m"]


def touch(path: Path, size: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    return path


def test_a_file_is_itself(tmp_path: Path) -> None:
    model = touch(tmp_path / "any name.bin")
    assert resolve(str(model)) == model


def test_a_directory_means_its_only_model(tmp_path: Path) -> None:
    touch(tmp_path / "notes.txt")
    model = touch(tmp_path / "M.GGUF")
    assert resolve(str(tmp_path)) == model


def test_a_sharded_model_is_its_first_shard_from_directory_and_from_any_shard(
    tmp_path: Path,
) -> None:
    shards = [touch(tmp_path / f"m-0000{i}-of-00003.gguf") for i in (1, 2, 3)]
    assert locate_path(tmp_path) == shards[0]
    assert locate_path(shards[2]) == shards[0]
    assert locate_path(shards[0]) == shards[0]


def test_a_later_shard_without_the_first_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"m-00001-of-00003.gguf, is missing"):
        locate_path(touch(tmp_path / "m-00002-of-00003.gguf"))


def test_directories_with_none_or_several_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"holds no .gguf"):
        locate_path(tmp_path)
    touch(tmp_path / "a.gguf")
    touch(tmp_path / "b.gguf")
    with pytest.raises(ModelNotFoundError, match=r"holds 2 models.*a.gguf, b.gguf"):
        locate_path(tmp_path)


def test_missing_files_and_pipes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        resolve(str(tmp_path / "absent.gguf"))
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelNotFoundError, match="not a regular file"):
        resolve(str(tmp_path / "pipe.gguf"))


def test_registry_models_are_found_in_every_searched_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_directories: Path
) -> None:
    assert locate_entry(ENTRY) is None
    old = touch(tmp_path / "home" / ".cache" / "ellm-models" / ENTRY.filename, ENTRY.size_bytes)
    assert locate_entry(ENTRY) == old
    cached = touch(own_directories / ENTRY.filename, ENTRY.size_bytes)
    assert locate_entry(ENTRY) == cached
    named = touch(tmp_path / "mine" / ENTRY.filename, ENTRY.size_bytes)
    monkeypatch.setenv("ELLM_MODELS", str(tmp_path / "mine"))
    assert locate_entry(ENTRY) == named
    assert resolve("default") == named


def test_a_file_of_another_size_is_not_the_model(own_directories: Path) -> None:
    touch(own_directories / ENTRY.filename, ENTRY.size_bytes - 1)
    assert locate_entry(ENTRY) is None


def test_local_models_are_listed_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_directories: Path
) -> None:
    first = touch(own_directories / "a-00001-of-00002.gguf")
    touch(own_directories / "a-00002-of-00002.gguf")
    second = touch(own_directories / "b.gguf")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "same.gguf").symlink_to(second)
    monkeypatch.setenv("ELLM_MODELS", str(tmp_path / "mine"))
    assert list(local_models()) == [tmp_path / "mine" / "same.gguf", first]
