"""Paths that are no model file, and sets of shards that do not belong together."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from ellm.errors import ModelNotFoundError
from tests.malformed.hostile import Hostile
from tests.support.gguf_builder import GgufBuilder, Kind

REGULAR = "a readable regular file"
VALUES_OF_8 = bytes(32)


def shard(
    number: int, count: int, tensors: int, *names: str, architecture: str | None = "llama"
) -> GgufBuilder:
    """Shard `number` (from 0) with an f32 tensor of 8 elements per name."""
    builder = GgufBuilder()
    if architecture:
        builder.add("general.architecture", architecture)
    builder.add("split.no", number, Kind.U16)
    builder.add("split.count", count, Kind.U16)
    builder.add("split.tensors.count", tensors, Kind.I32)
    for name in names:
        builder.tensor(name, "f32", (8,), VALUES_OF_8)
    return builder


def shard_path(directory: Path, number: int, count: int) -> Path:
    """Path of shard `number` (from 1, as in the name)."""
    return directory / f"model-{number:05}-of-{count:05}.gguf"


def write_shards(directory: Path, *shards: GgufBuilder) -> Path:
    for number, builder in enumerate(shards, start=1):
        shard_path(directory, number, len(shards)).write_bytes(builder.build())
    return shard_path(directory, 1, len(shards))


def _not_files() -> list[Hostile]:
    def case(name: str, found: str, make: Callable[[Path], None]) -> Hostile:
        def write(directory: Path) -> Path:
            path = directory / "model.gguf"
            make(path)
            return path

        return Hostile(name, write, found, REGULAR, None)

    def bind_socket(path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))  # a socket's path is at most 107 bytes

    def link_to_directory(path: Path) -> None:
        (path.parent / "inner").mkdir()
        path.symlink_to(path.parent / "inner")

    return [
        case("directory", "a directory", Path.mkdir),
        case("FIFO", "a FIFO", os.mkfifo),
        case("socket", "a socket", bind_socket),
        case("link to a device", "a character device", lambda path: path.symlink_to("/dev/zero")),
        case("link to a directory", "a directory", link_to_directory),
        case("link to itself", "symbolic links", lambda path: path.symlink_to(path)),
    ]


def _missing_files() -> list[Hostile]:
    def dangling(directory: Path) -> Path:
        (directory / "model.gguf").symlink_to(directory / "nothing")
        return directory / "model.gguf"

    def under_a_file(directory: Path) -> Path:
        (directory / "file").write_bytes(b"")
        return directory / "file" / "model.gguf"

    def case(name: str, write: Callable[[Path], Path]) -> Hostile:
        return Hostile(name, write, "no such model file", "", None, ModelNotFoundError)

    return [
        case("no file", lambda directory: directory / "model.gguf"),
        case("link to nothing", dangling),
        case("path under a file", under_a_file),
    ]


# Where the values of split.no, split.count and split.tensors.count start in `shard`.
_ARCHITECTURE_BYTES = 8 + 20 + 4 + 8 + 5
AT_NUMBER = 24 + _ARCHITECTURE_BYTES + 8 + 8 + 4
AT_COUNT = AT_NUMBER + 2 + 8 + 11 + 4
AT_TENSORS = AT_COUNT + 2 + 8 + 19 + 4


def _wrong_names() -> list[Hostile]:
    def alone(name: str, builder: GgufBuilder) -> Callable[[Path], Path]:
        def write(directory: Path) -> Path:
            (directory / name).write_bytes(builder.build())
            return directory / name

        return write

    def second(directory: Path) -> Path:
        write_shards(directory, shard(0, 2, 2, "a"), shard(1, 2, 2, "b"))
        return shard_path(directory, 2, 2)

    return [
        Hostile(
            "second shard opened",
            second,
            "shard 2 of 2",
            "the first; open ",
            AT_NUMBER,
        ),
        Hostile(
            "shard under a plain name",
            alone("model.gguf", shard(0, 3, 3, "a")),
            "split.count 3",
            "a file name that ends in -00001-of-00003.gguf",
            AT_COUNT,
        ),
        Hostile(
            "shard under the name of a smaller set",
            alone("model-00001-of-00002.gguf", shard(0, 3, 3, "a")),
            "split.count 3",
            "a file name that ends in -00001-of-00003.gguf",
            AT_COUNT,
        ),
        Hostile(
            "name of a shard, but no shard",
            alone("model-00001-of-00002.gguf", GgufBuilder().add("general.name", "x")),
            "no key 'split.count'",
            "split.count 2, as the file's name says",
            0,
        ),
        Hostile(
            "first by its name, second by its number",
            alone("model-00001-of-00002.gguf", shard(1, 2, 2, "a")),
            "1",
            "0",
            AT_NUMBER,
        ),
        Hostile(
            "split.count 65535",
            alone("model-00001-of-65535.gguf", shard(0, 65535, 1, "a")),
            "No such file",
            "shard 2 of 65535",
            None,
            blamed="model-00002-of-65535.gguf",
        ),
    ]


def _wrong_keys() -> list[Hostile]:
    def first(name: str, change: Callable[[GgufBuilder], GgufBuilder], **error: str) -> Hostile:
        def write(directory: Path) -> Path:
            return write_shards(
                directory, change(shard(0, 2, 2, "a")), shard(1, 2, 2, "b", architecture=None)
            )

        offset = int(error.pop("offset"))
        return Hostile(name, write, **error, offset=offset)

    every = "split.no, split.count and split.tensors.count in every shard"
    return [
        first(
            "no split.no",
            lambda b: b.remove("split.no"),
            found="no key 'split.no'",
            expected=every,
            offset="0",
        ),
        first(
            "no split.tensors.count",
            lambda b: b.remove("split.tensors.count"),
            found="no key 'split.tensors.count'",
            expected=every,
            offset="0",
        ),
        first(
            "split.no is text",
            lambda b: b.add("split.no", "0"),
            found="a value of type string",
            expected="an integer from 0 to 1",
            offset=str(AT_NUMBER),
        ),
        first(
            "split.no out of range",
            lambda b: b.add("split.no", 2, Kind.U16),
            found="2",
            expected="an integer from 0 to 1",
            offset=str(AT_NUMBER),
        ),
        first(
            "split.count above 65535",
            lambda b: b.add("split.count", 2**40, Kind.U64),
            found=str(2**40),
            expected="an integer from 0 to 65535",
            offset=str(AT_COUNT),
        ),
        first(
            "split.tensors.count -1",
            lambda b: b.add("split.tensors.count", -1),
            found="-1",
            expected="an integer from 0 to 2147483647",
            offset=str(AT_TENSORS),
        ),
        Hostile(
            "split.tensors.count too large",
            lambda directory: write_shards(directory, shard(0, 2, 3, "a"), shard(1, 2, 3, "b")),
            found="2 tensors",
            expected="3, as split.tensors.count says",
            offset=AT_TENSORS,
        ),
    ]


def _wrong_second_shards() -> list[Hostile]:
    def case(
        name: str, second: GgufBuilder | bytes | None, offset: int | None, found: str, expected: str
    ) -> Hostile:
        def write(directory: Path) -> Path:
            path = shard_path(directory, 1, 2)
            path.write_bytes(shard(0, 2, 2, "a").build())
            other = shard_path(directory, 2, 2)
            if second is not None:
                other.write_bytes(second if isinstance(second, bytes) else second.build())
            return path

        return Hostile(name, write, found, expected, offset, blamed=shard_path(Path(), 2, 2).name)

    def fifo(directory: Path) -> Path:
        path = shard_path(directory, 1, 2)
        path.write_bytes(shard(0, 2, 2, "a").build())
        os.mkfifo(shard_path(directory, 2, 2))
        return path

    fifo_case = Hostile(
        "FIFO as second shard",
        fifo,
        "a FIFO",
        "shard 2 of 2",
        None,
        blamed="model-00002-of-00002.gguf",
    )
    plain = GgufBuilder().tensor("b", "f32", (8,), VALUES_OF_8)
    duplicate_offset = AT_TENSORS + 4 + 8
    return [
        fifo_case,
        case("missing shard", None, None, "No such file", "shard 2 of 2"),
        case("first shard twice", shard(0, 2, 2, "a"), AT_NUMBER, "0", "1"),
        case("shard of a larger set", shard(1, 3, 2, "b"), AT_COUNT, "3", "2"),
        case("shard of a set with more tensors", shard(1, 2, 9, "b"), AT_TENSORS, "9", "2"),
        case(
            "shard of another architecture",
            shard(1, 2, 2, "b", architecture="qwen2"),
            24 + 8 + 20 + 4,
            "another value than in the first shard",
            "shards of one model",
        ),
        case("plain file as second shard", plain, 0, "no key 'split.count'", "in every shard"),
        case(
            "tensor in both shards",
            shard(1, 2, 2, "a"),
            duplicate_offset,
            "'a' again",
            "each name in one shard",
        ),
        case("damaged second shard", b"GGUX" + bytes(60), 0, "'GGUX'", "'GGUF'"),
    ]


def _without_permission(directory: Path) -> Path:
    path = directory / "model.gguf"
    shutil.copyfile("/proc/self/status", path)
    path.chmod(0)
    return path


UNREADABLE = Hostile("no read permission", _without_permission, "Permission denied", REGULAR, None)

CASES = [
    *_not_files(),
    *_missing_files(),
    *_wrong_names(),
    *_wrong_keys(),
    *_wrong_second_shards(),
]
