from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ellm.cli.json_file import require_writable, write_json
from ellm.errors import ConfigError


def test_a_new_file_holds_the_object(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    require_writable(path)
    assert list(tmp_path.iterdir()) == []
    write_json(path, {"cpu": "é", "rows": [1]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"cpu": "é", "rows": [1]}
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_was_there_is_replaced_also_behind_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "old.json", tmp_path / "link.json"
    path.write_text("old")
    link.symlink_to(path)
    require_writable(link)
    assert path.read_text() == "old"
    write_json(link, {})
    assert link.is_symlink()
    assert path.read_text() == "{}\n"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "Is a directory"),
        ("absent/new.json", "No such file or directory"),
        ("file/new.json", "Not a directory"),
        ("nul\0.json", "null"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_with_the_reason(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "file").write_text("text")
    for write in (require_writable, lambda path: write_json(path, {})):
        with pytest.raises(ConfigError, match="cannot write") as caught:
            write(tmp_path / name)
        assert reason in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(ConfigError, match="Permission denied"):
        require_writable(path)


def test_a_device_or_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    require_writable(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_json(pipe, {"a": 1})
        assert json.loads(os.read(reader, 100)) == {"a": 1}
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.json"
    path.write_text("old")

    def no_space(_self: Path, _text: str, encoding: str) -> int:
        raise OSError(28, f"No space left on device for {encoding}")

    monkeypatch.setattr(Path, "write_text", no_space)
    with pytest.raises(ConfigError, match="No space left"):
        write_json(path, {})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
