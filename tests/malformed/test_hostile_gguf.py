"""Every hostile model file ends in one typed error that says where and why, fast and small."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ellm.errors import EllmError, InvalidModelError, ModelNotFoundError
from ellm.formats.gguf import GgufFile
from tests.malformed import hostile_files, hostile_headers, hostile_tensors
from tests.malformed.hostile import Hostile
from tests.support.gguf_builder import GgufBuilder

CASES = [*hostile_headers.CASES, *hostile_tensors.CASES, *hostile_files.CASES]
MAX_SECONDS = 1.0
MAX_GROWTH_BYTES = 50 << 20


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


@contextmanager
def peak_growth() -> Iterator[list[int]]:
    """Append how far the resident memory rose above its start, to be read afterwards."""
    # Source: proc(5), clear_refs: 5 resets the peak resident set size.
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmRSS")
    growth: list[int] = []
    yield growth
    growth.append(_status_bytes("VmHWM") - before)


def open_hostile(path: Path) -> EllmError:
    """Open the file and return its error, having checked time and memory."""
    start = time.perf_counter()
    with peak_growth() as growth, pytest.raises(EllmError) as caught:
        GgufFile.open(path)
    assert time.perf_counter() - start < MAX_SECONDS
    assert growth[0] < MAX_GROWTH_BYTES
    return caught.value


def check(case: Hostile, directory: Path) -> None:
    path = case.write(directory)
    error = open_hostile(path)
    blamed = str(directory / case.blamed) if case.blamed else str(path)
    assert type(error) is case.error
    message = str(error)
    assert message.startswith(f"{blamed}: ")
    assert "\n" not in message
    where = "" if case.offset is None else f" at byte {case.offset}: "
    assert where in message
    assert case.found in message
    assert case.expected in message
    if isinstance(error, InvalidModelError):
        assert (error.path, error.offset) == (blamed, case.offset)
        assert case.found in error.found
        assert case.expected in error.expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hostile_file_ends_in_its_error(
    case: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(case, tmp_path)


def test_names_of_hostile_files_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    if os.geteuid() != 0:
        check(hostile_files.UNREADABLE, tmp_path)
        return
    # Root reads everything; give the privilege up for the one call.
    path = hostile_files.UNREADABLE.write(tmp_path)
    os.seteuid(65534)
    try:
        with pytest.raises(InvalidModelError, match="Permission denied"):
            GgufFile.open(path)
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("shards", [1, 2])
def test_every_truncation_ends_in_a_typed_error(shards: int, tmp_path: Path) -> None:
    """A valid file, cut after each of its bytes up to the last byte of tensor data."""
    if shards == 1:
        path = tmp_path / "model.gguf"
        builder = GgufBuilder().add("general.architecture", "llama").add("a.list", ["x", "yz"])
        builder.add("a.numbers", [1, 2, 3]).tensor("t", "f32", (8,), bytes(32))
        path.write_bytes(builder.build())
        cut = path
    else:
        first = hostile_files.shard(0, 2, 2, "a")
        path = hostile_files.write_shards(tmp_path, first, hostile_files.shard(1, 2, 2, "b"))
        cut = hostile_files.shard_path(tmp_path, 2, 2)
    whole = cut.read_bytes()
    assert GgufFile.open(path).tensors
    for size in range(len(whole)):
        cut.write_bytes(whole[:size])
        with pytest.raises(InvalidModelError) as caught:
            GgufFile.open(path)
        assert caught.value.path == str(cut)


def test_path_with_a_nul_is_no_model_file() -> None:
    with pytest.raises(ModelNotFoundError):
        GgufFile.open(Path("model\0.gguf"))
