"""A GGUF model on disk: its metadata, its tensors and their raw bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ellm import native
from ellm.errors import InvalidModelError, ModelNotFoundError
from ellm.formats.gguf.metadata import MetadataReader, MetadataValue


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies and how it is stored.

    Attributes:
        name: GGUF's name, such as "blk.0.attn_q.weight".
        type_name: Weight format, a key of `ellm.formats.quantization.FORMATS`.
        shape: NumPy order: (rows, cols) of a matrix, (n,) of a vector.
        path: The file that holds it.
        offset: Bytes from the start of that file.
        nbytes: Bytes of the tensor.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of the model, as it was when its header was read.

    Attributes:
        path: The file.
        device: Number of its file system.
        inode: Its number there.
        nbytes: Its size.
        mtime_ns: Time of its last change.
        header_bytes: Bytes before the padding in front of the tensor data.
    """

    path: Path
    device: int
    inode: int
    nbytes: int
    mtime_ns: int
    header_bytes: int

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return bytes of the file, by `pread` so that a cut file is an error and not a signal.

        Raises:
            InvalidModelError: The file was changed, cut or replaced since its header was read.
        """
        data = np.empty(nbytes, dtype=np.uint8)
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise self._changed(error.strerror or "an unreadable file") from error
        try:
            done = _read_into(descriptor, data, offset)
            # Asked after reading: bytes read before a change are then refused as well.
            status = os.fstat(descriptor)
        except OSError as error:
            raise self._changed(error.strerror or "an unreadable file") from error
        finally:
            os.close(descriptor)
        self._require_unchanged(status)
        if done < nbytes:
            raise self._changed(f"{done} of {nbytes} bytes at byte {offset}")
        return data

    def _require_unchanged(self, status: os.stat_result) -> None:
        if (status.st_dev, status.st_ino) != (self.device, self.inode):
            raise self._changed("another file at this path")
        if (status.st_size, status.st_mtime_ns) != (self.nbytes, self.mtime_ns):
            raise self._changed(f"{status.st_size} bytes, modified at {status.st_mtime_ns} ns")

    def _changed(self, found: str) -> InvalidModelError:
        return InvalidModelError(
            "the file changed after its header was read",
            path=str(self.path),
            found=found,
            expected=f"the same file of {self.nbytes} bytes, modified at {self.mtime_ns} ns",
        )


class GgufFile:
    """An open model: one file, or all shards of a set. Holds no descriptor and no mapping."""

    __slots__ = (
        "_fingerprint",
        "metadata",
        "metadata_offsets",
        "path",
        "shards",
        "tensors",
        "version",
    )

    path: Path
    shards: tuple[Shard, ...]
    version: int
    metadata: Mapping[str, MetadataValue]
    metadata_offsets: Mapping[str, int]
    tensors: Mapping[str, TensorInfo]
    _fingerprint: str | None

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        """Keep what `native.read_gguf` found; `open` is the way to get one."""
        self.path = path
        self.version = header["version"]
        self.metadata = MappingProxyType(header["metadata"])
        self.metadata_offsets = MappingProxyType(header["metadata_offsets"])
        self.shards = tuple(Shard(Path(where), *rest) for where, *rest in header["shards"])
        self.tensors = MappingProxyType(
            {
                name: TensorInfo(name, kind, shape, self.shards[shard].path, offset, nbytes)
                for name, kind, shape, shard, offset, nbytes in header["tensors"]
            }
        )
        self._fingerprint = None

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """Read and check the headers of a model; of a sharded one, `path` is the first file.

        Raises:
            ModelNotFoundError: There is no such file.
            InvalidModelError: The file is damaged, hostile or inconsistent.
            UnsupportedError: The file is valid but uses something eLLM does not read.
        """
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            # ValueError: the path holds a NUL, as no file's does.
            raise ModelNotFoundError(f"{path}: there is no such model file") from error
        except OSError:
            pass  # the native reader names what it meets
        return cls(path, native.read_gguf(path))

    @property
    def reader(self) -> MetadataReader:
        """Typed access to the metadata; errors name this file and the value's offset."""
        return MetadataReader(self.metadata, self.path, self.metadata_offsets)

    @property
    def fingerprint(self) -> str:
        """Hex digest that changes with the header, size or modification time of any shard.

        Raises:
            InvalidModelError: A shard was changed since its header was read.
        """
        if self._fingerprint is None:
            digest = hashlib.blake2b(digest_size=16)
            for shard in self.shards:
                digest.update(f"{shard.nbytes} {shard.mtime_ns} {shard.header_bytes}\n".encode())
                digest.update(shard.read(0, shard.header_bytes).data)
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def read(self, name: str) -> NDArray[np.uint8]:
        """Return the raw bytes of a tensor.

        Raises:
            InvalidModelError: There is no such tensor, or its file was changed since it was opened.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            raise InvalidModelError(
                f"tensor {name!r}",
                path=str(self.path),
                found=f"{len(self.tensors)} tensors without it",
                expected="a tensor of this name",
            )
        shard = next(shard for shard in self.shards if shard.path == tensor.path)
        return shard.read(tensor.offset, tensor.nbytes)


def _read_into(descriptor: int, data: NDArray[np.uint8], offset: int) -> int:
    """Fill `data` from `offset` and return how many bytes there were."""
    view = data.data
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done
