"""The reader under ASan and UBSan: no hostile file makes it touch memory that is not its own."""

from __future__ import annotations

import hashlib
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
REPOSITORY = Path(__file__).resolve().parents[2]
NATIVE = REPOSITORY / "native"
BUILD = REPOSITORY / "build" / "sanitizers"
PARTS = ("base", "gguf", "fuzz")
DRIVER = ("gguf_dump.cc", "touch_model.cc")
# Unoptimised: compiles in half the time, and nothing undefined is optimised away before it is seen.
FLAGS = ["-std=c++20", "-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
COMPILERS_AT_A_TIME = 2

# detect_leaks needs ptrace, which containers may refuse; allocations that a file of a few bytes can
# ask for stay below 64 MB.
SANITIZER_OPTIONS = "abort_on_error=1:detect_leaks=0:max_allocation_size_mb=64"


@pytest.fixture(scope="session")
def dump() -> Path:
    """The driver `gguf_dump`, built with sanitizers unless the same sources were built before."""
    compiler = os.environ.get("CXX", "g++")
    digest = hashlib.sha256(" ".join([compiler, *FLAGS]).encode())
    for source in sorted(path for part in PARTS for path in (NATIVE / part).iterdir()):
        digest.update(source.read_bytes())
    program = BUILD / f"gguf_dump-{digest.hexdigest()[:16]}"
    if not program.exists():
        _build(program, compiler)
    return program


def _build(program: Path, compiler: str) -> None:
    sources = [*(NATIVE / "gguf").glob("*.cc"), *(NATIVE / "fuzz" / name for name in DRIVER)]
    objects = program.with_suffix(".objects")
    objects.mkdir(parents=True, exist_ok=True)

    def compile_one(source: Path) -> Path:
        target = objects / f"{source.stem}.o"
        command = [compiler, *FLAGS, f"-I{NATIVE}", "-c", str(source), "-o", str(target)]
        subprocess.run(command, check=True)
        return target

    with ThreadPoolExecutor(COMPILERS_AT_A_TIME) as pool:
        built = list(pool.map(compile_one, sources))
    # Linked aside and renamed, so that a run that was stopped leaves no half a program.
    linked = objects / "gguf_dump"
    subprocess.run([compiler, *FLAGS, *map(str, built), "-o", str(linked)], check=True)
    linked.rename(program)


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


def test_file_that_grows_while_it_is_read_ends_in_a_typed_error(dump: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(GgufBuilder().add("general.architecture", "llama").build())
    size = path.stat().st_size
    (line,) = run(dump, ["--grow", path])
    assert line.startswith(f"invalid {path}: the file changed while it was read: found {size + 1} ")
