"""The reader under ASan and UBSan: no hostile file makes it touch memory that is not its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ellm.errors import ModelNotFoundError, UnsupportedError
from tests.malformed import hostile_files, hostile_headers, hostile_tensors
from tests.malformed.hostile import Hostile
from tests.support.gguf_builder import GgufBuilder
from tests.support.tiny_gguf import tiny_gguf

CASES = [*hostile_headers.CASES, *hostile_tensors.CASES, *hostile_files.CASES]
NATIVE = Path(__file__).resolve().parents[2] / "native"
FLAGS = ["-std=c++20", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
COMPILERS_AT_A_TIME = 2

# detect_leaks needs ptrace, which containers may refuse; allocations that a file of a few bytes can
# ask for stay below 64 MB.
SANITIZER_OPTIONS = "abort_on_error=1:detect_leaks=0:max_allocation_size_mb=64"


@pytest.fixture(scope="session")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver `gguf_dump`, built with sanitizers."""
    out = tmp_path_factory.mktemp("sanitizers")
    compiler = os.environ.get("CXX", "g++")
    sources = sorted(NATIVE.glob("gguf/*.cc"))
    sources += [NATIVE / "fuzz" / "gguf_dump.cc", NATIVE / "fuzz" / "touch_model.cc"]

    def compile_one(source: Path) -> Path:
        target = out / f"{source.stem}.o"
        command = [compiler, *FLAGS, f"-I{NATIVE}", "-c", str(source), "-o", str(target)]
        subprocess.run(command, check=True)
        return target

    with ThreadPoolExecutor(COMPILERS_AT_A_TIME) as pool:
        objects = list(pool.map(compile_one, sources))
    program = out / "gguf_dump"
    subprocess.run([compiler, *FLAGS, *map(str, objects), "-o", str(program)], check=True)
    return program


def run(dump: Path, arguments: Sequence[str | Path]) -> list[str]:
    """Return one line per file; a sanitizer's finding fails the test with its report."""
    result = subprocess.run(
        [dump, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env={
            "ASAN_OPTIONS": SANITIZER_OPTIONS,
            "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
        },
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.splitlines()


def test_every_hostile_file_ends_in_its_error(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for number, case in enumerate(CASES):
        directory = tmp_path / str(number)
        directory.mkdir()
        monkeypatch.chdir(directory)
        paths.append(case.write(directory))
    lines = run(dump, paths)
    assert len(lines) == len(CASES)
    for case, path, line in zip(CASES, paths, lines, strict=True):
        _check(case, path, line)


def _check(case: Hostile, path: Path, line: str) -> None:
    kind, _, message = line.partition(" ")
    assert kind == ("unsupported" if case.error is UnsupportedError else "invalid"), line
    assert message.startswith(f"{path.parent}/"), line
    if case.error is not ModelNotFoundError:  # which Python says in its own words
        assert case.found in message
        assert case.expected in message


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3"])
def test_valid_model_is_read(dump: Path, architecture: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf(architecture, ["q4_k", "f16", "q6_k"]).build())
    assert run(dump, [path])[0].startswith("ok ")


def test_valid_shards_are_read(dump: Path, tmp_path: Path) -> None:
    first = hostile_files.shard(0, 2, 3, "a")
    path = hostile_files.write_shards(tmp_path, first, hostile_files.shard(1, 2, 3, "b", "c"))
    assert run(dump, [path]) == ["ok 4 keys, 3 tensors, 2 shards"]


def test_file_cut_while_it_is_read_ends_in_a_typed_error(dump: Path, tmp_path: Path) -> None:
    """`gguf_dump` claims bytes that are no longer there, as if the file was cut after `open`."""
    whole = GgufBuilder().add("general.architecture", "llama").add("a", ["x", "y"])
    data = whole.tensor("t", "f32", (8,), bytes(32)).build()
    missing = 40
    paths = []
    for size in range(0, len(data) - missing, 3):
        paths.append(tmp_path / f"{size}.gguf")
        paths[-1].write_bytes(data[:size])
    lines = run(dump, ["--missing-bytes", str(missing), *paths])
    assert len(lines) == len(paths)
    assert all(line.startswith("invalid ") for line in lines)
    assert sum("the file shrank while it was read" in line for line in lines) > len(lines) // 2
