"""Nobody else can read the cache, write to it, or lead it elsewhere."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ellm.errors import ConfigError
from ellm.kv.disk.private_files import open_private

from .blocks import block, chain, fill, found, open_cache, put


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o277])
def test_directory_and_files_are_the_owners_alone(tmp_path: Path, mask: int) -> None:
    directory = tmp_path / "cache"
    if mask == 0o277:
        directory.mkdir(mode=0o700)
    with umask(mask), open_cache(directory) as cache:
        put(cache, *chain("a", 3))
        modes = {path.name: mode_of(path) for path in directory.iterdir()}
    assert mode_of(directory) == 0o700
    # The index's log and its shared memory are there while it is open.
    assert len(modes) == 5
    assert set(modes.values()) == {0o600}


def test_directories_above_are_made(tmp_path: Path) -> None:
    with open_cache(tmp_path / "a" / "b") as cache:
        assert cache.directory == tmp_path / "a" / "b"


def test_a_link_to_the_directory_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    one = block("one")
    fill(tmp_path / "link", [one])
    with open_cache(tmp_path / "real") as cache:
        assert found(cache, one)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o702])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "cache"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(ConfigError, match=rf"has mode {mode:04o}.*chmod 700"):
        open_cache(directory)
    assert list(directory.iterdir()) == []


def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="belongs to user"):
        open_cache(tmp_path)


def test_what_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "circle").symlink_to("circle")
    for name in ("file", "file/below", "circle"):
        with pytest.raises(ConfigError, match="cache directory"):
            open_cache(tmp_path / name)


@pytest.mark.parametrize("name", ["lock", "index.sqlite", "segment-00000001.pages"])
def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path, name: str) -> None:
    directory, victim = tmp_path / "cache", tmp_path / "victim"
    directory.mkdir(mode=0o700)
    (directory / name).symlink_to(victim)
    with open_cache(directory) as cache:
        # Without a lock of our own nothing is written at all.
        assert cache.writable == (name != "lock")
    assert not victim.exists()


@pytest.mark.parametrize("name", ["index.sqlite-wal", "index.sqlite-shm", "index.sqlite-journal"])
def test_a_link_in_the_place_of_a_side_file_is_not_followed(tmp_path: Path, name: str) -> None:
    directory, victim = tmp_path / "cache", tmp_path / "victim"
    fill(directory, chain("a", 2))
    (directory / name).symlink_to(victim)
    for read_only in (True, False):
        with open_cache(directory, read_only=read_only) as cache:
            cache.present([block("a/0").key])
    assert not victim.exists()


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match="not a regular file"):
            open_private(tmp_path / name, os.O_RDONLY)


def test_other_files_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    names = ["secret", "segment-1.pages", "segment-00000001.pages.bak", "x.sqlite"]
    for name in names:
        (tmp_path / name).write_text(name)
    with open_cache(tmp_path) as cache:
        put(cache, *chain("a", 2))
        cache.clear()
        assert cache.bytes_used == 0
    assert [(tmp_path / name).read_text() for name in names] == names
