"""Model files that are already on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ellm.errors import ModelNotFoundError
from ellm.hub.paths import search_dirs
from ellm.hub.registry import ModelEntry

SHARD = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


def locate_path(path: Path) -> Path:
    """Return the GGUF file a path means: itself, its first shard, or the one in the directory.

    Raises:
        ModelNotFoundError: Nothing is there, it is not a regular file, or a directory holds no
            GGUF file or more than one model.
    """
    if path.is_dir():
        return _only_model(path)
    if not path.exists():
        raise ModelNotFoundError(f"{path}: no such file")
    if not path.is_file():
        raise ModelNotFoundError(f"{path}: not a regular file")
    return _first_shard(path)


def locate_entry(entry: ModelEntry) -> Path | None:
    """Return the file of a registry model, or None when no searched directory holds it.

    Only the size is compared: `pull` renames a file into place after its checksum was right, and
    hashing a gigabyte at every start would cost more than loading it.
    """
    for directory in search_dirs():
        path = directory / entry.filename
        try:
            if path.is_file() and path.stat().st_size == entry.size_bytes:
                return path
        except OSError:
            continue
    return None


def local_models() -> Iterator[Path]:
    """Yield every model (first shards only) in the searched directories, each file once."""
    seen: set[Path] = set()
    for directory in search_dirs():
        if not directory.is_dir():
            continue
        for path in models_in(directory):
            real = path.resolve()
            if real not in seen:
                seen.add(real)
                yield path


def models_in(directory: Path) -> list[Path]:
    """Return the models directly in a directory, sorted; a sharded model counts as its first."""
    files = (p for p in directory.iterdir() if p.suffix.lower() == ".gguf" and p.is_file())
    return sorted(p for p in files if _shard_index(p) in (None, 1))


def _only_model(directory: Path) -> Path:
    try:
        models = models_in(directory)
    except OSError as error:
        raise ModelNotFoundError(f"{directory}: cannot be read: {error.strerror}") from error
    if not models:
        raise ModelNotFoundError(f"{directory}: the directory holds no .gguf file")
    if len(models) > 1:
        names = ", ".join(p.name for p in models[:5]) + (", ..." if len(models) > 5 else "")
        raise ModelNotFoundError(
            f"{directory}: the directory holds {len(models)} models, name one of them: {names}"
        )
    return models[0]


def _first_shard(path: Path) -> Path:
    match = SHARD.fullmatch(path.name)
    if match is None or int(match["index"]) == 1:
        return path
    first = path.with_name(f"{match['stem']}-00001-of-{match['count']}.gguf")
    if not first.is_file():
        raise ModelNotFoundError(
            f"{path}: a later shard of a model whose first, {first.name}, is missing"
        )
    return first


def _shard_index(path: Path) -> int | None:
    match = SHARD.fullmatch(path.name)
    return int(match["index"]) if match else None
