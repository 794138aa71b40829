import os
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ellm.errors import ConfigError
from ellm.kv.installation_secret import SECRET_BYTES, SECRET_NAME, load_secret


def test_a_secret_is_made_once_and_only_its_owner_reads_it(tmp_path):
    directory = tmp_path / "new" / "cache"
    secret = load_secret(directory)
    assert len(secret) == SECRET_BYTES
    assert load_secret(directory) == secret
    assert [path.name for path in directory.iterdir()] == [SECRET_NAME]
    assert (directory / SECRET_NAME).read_bytes() == secret
    assert stat.S_IMODE((directory / SECRET_NAME).stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_two_installations_have_two_secrets(tmp_path):
    assert load_secret(tmp_path / "a") != load_secret(tmp_path / "b")


def _write(content):
    def damage(path):
        path.write_bytes(content)

    return damage


def _symlink(path):
    target = path.absolute().parent.parent / "elsewhere"
    target.write_bytes(b"x" * SECRET_BYTES)
    target.chmod(0o600)
    path.unlink()
    path.symlink_to(target)


def _dangling_symlink(path):
    path.unlink()
    path.symlink_to("nowhere")


def _pipe(path):
    path.unlink()
    os.mkfifo(path, 0o600)


def _socket(path):
    path.unlink()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


DAMAGES = {
    "empty": _write(b""),
    "short": _write(b"x" * (SECRET_BYTES - 1)),
    "long": _write(b"x" * (SECRET_BYTES + 1)),
    "zeros": _write(bytes(SECRET_BYTES)),
    "open to the group": lambda path: path.chmod(0o640),
    "open to all": lambda path: path.chmod(0o604),
    "symlink": _symlink,
    "dangling symlink": _dangling_symlink,
    "pipe": _pipe,
    "socket": _socket,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_secret_is_replaced_for_good(tmp_path, monkeypatch, damage):
    monkeypatch.chdir(tmp_path)  # a socket's path has to be short
    path = Path("cache") / SECRET_NAME
    before = load_secret(path.parent)
    damage(path)
    after = load_secret(path.parent)
    assert after != before
    assert after not in (b"x" * SECRET_BYTES, bytes(SECRET_BYTES))
    assert load_secret(path.parent) == after
    assert path.is_file()
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [SECRET_NAME]


def test_a_symlinks_target_is_left_alone(tmp_path):
    path = tmp_path / "cache" / SECRET_NAME
    load_secret(path.parent)
    _symlink(path)
    load_secret(path.parent)
    assert (tmp_path / "elsewhere").read_bytes() == b"x" * SECRET_BYTES


def test_what_comes_out_of_a_pipe_is_no_secret(tmp_path):
    os.mkfifo(tmp_path / SECRET_NAME, 0o600)
    writer = os.open(tmp_path / SECRET_NAME, os.O_RDWR)
    try:
        os.write(writer, b"x" * SECRET_BYTES)
        assert load_secret(tmp_path) != b"x" * SECRET_BYTES
    finally:
        os.close(writer)


def test_starts_at_the_same_moment_agree_on_one_secret(tmp_path):
    for attempt in range(20):
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(load_secret, [tmp_path / str(attempt)] * 8))
        assert len(set(found)) == 1


def test_what_another_process_made_meanwhile_is_taken(tmp_path, monkeypatch):
    first = b"y" * SECRET_BYTES
    fsync = os.fsync

    def somebody_is_faster(descriptor):
        fsync(descriptor)
        (tmp_path / SECRET_NAME).write_bytes(first)
        (tmp_path / SECRET_NAME).chmod(0o600)

    monkeypatch.setattr(os, "fsync", somebody_is_faster)
    assert load_secret(tmp_path) == first


def test_a_file_system_without_links_has_a_secret_all_the_same(tmp_path, monkeypatch):
    def refuse(*_args, **_named):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert load_secret(tmp_path) == load_secret(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [SECRET_NAME]


def test_a_directory_in_its_place_is_a_typed_error(tmp_path):
    (tmp_path / SECRET_NAME).mkdir()
    with pytest.raises(ConfigError, match="neither read nor made: Is a directory; give another"):
        load_secret(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [SECRET_NAME]


def test_a_file_in_the_directorys_place_is_a_typed_error(tmp_path):
    (tmp_path / "cache").write_bytes(b"")
    for directory in (tmp_path / "cache", tmp_path / "cache" / "below"):
        with pytest.raises(ConfigError, match="neither read nor made"):
            load_secret(directory)


def test_a_full_disk_is_a_typed_error_and_leaves_nothing(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        load_secret(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_passing_failure_does_not_replace_the_secret(tmp_path, monkeypatch):
    secret = load_secret(tmp_path)

    def too_many(*_args, **_named):
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", too_many)
        with pytest.raises(ConfigError, match="Too many open files"):
            load_secret(tmp_path)
    assert load_secret(tmp_path) == secret
