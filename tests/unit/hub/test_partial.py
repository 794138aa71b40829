from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ellm.errors import DownloadError
from ellm.hub.partial import PartialFile
from ellm.hub.progress import ignore_progress

PARTS = ("one", "two", "three")
DATA = {"one": b"a" * 10, "two": b"b" * 20, "three": b"c" * 5}
SHA = hashlib.sha256(b"".join(DATA.values())).hexdigest()


def add(partial: PartialFile, name: str) -> None:
    with partial.append() as out:
        out.write(DATA[name])
    partial.commit()


def start(tmp_path: Path, sha256: str = SHA) -> PartialFile:
    return PartialFile.open(tmp_path / "m.gguf", sha256, PARTS)


def test_parts_join_into_the_target_and_leave_nothing_else(tmp_path: Path) -> None:
    partial = start(tmp_path)
    for name in partial.missing:
        add(partial, name)
    assert partial.finish(ignore_progress).read_bytes() == b"".join(DATA.values())
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_a_second_start_continues_after_the_last_whole_part(tmp_path: Path) -> None:
    add(start(tmp_path), "one")
    with (tmp_path / "m.gguf.partial").open("ab") as file:
        file.write(b"half of tw")
    again = start(tmp_path)
    assert again.missing == ("two", "three")
    assert again.path.read_bytes() == DATA["one"]


@pytest.mark.parametrize(
    "journal",
    [
        "",
        "{",
        "[]",
        '{"sha256": 1}',
        json.dumps({"sha256": "other", "parts": [{"name": "one", "end": 10}]}),
        json.dumps({"sha256": SHA, "parts": [{"name": "two", "end": 10}]}),
        json.dumps({"sha256": SHA, "parts": [{"name": "one", "end": 11}]}),
        json.dumps({"sha256": SHA, "parts": [{"name": "one", "end": -1}]}),
        json.dumps(
            {"sha256": SHA, "parts": [{"name": "one", "end": 5}, {"name": "two", "end": 5}]}
        ),
        json.dumps({"sha256": SHA, "parts": [{"name": "one", "end": "x"}]}),
    ],
)
def test_a_journal_that_does_not_fit_starts_over(tmp_path: Path, journal: str) -> None:
    add(start(tmp_path), "one")
    (tmp_path / "m.gguf.partial.json").write_text(journal)
    again = start(tmp_path)
    assert again.missing == PARTS
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_checksum_deletes_the_download(tmp_path: Path) -> None:
    partial = start(tmp_path, "00" * 32)
    for name in partial.missing:
        add(partial, name)
    with pytest.raises(DownloadError, match=f"is {SHA}, expected 0000"):
        partial.finish(ignore_progress)
    assert list(tmp_path.iterdir()) == []
