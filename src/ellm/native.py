"""The one door to the compiled core; nothing else imports `ellm._core`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ellm.errors import NativeError

try:
    # Imported by name: the compiled module has no stub.
    _core: Any = import_module("ellm._core")
except ImportError as error:
    raise NativeError(
        f"the native core of eLLM cannot be loaded ({error}); build it with "
        "`pip install .` in a clone of the repository, or install the wheel again"
    ) from error

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Tokens = NDArray[np.int32]
KvShape = tuple[int, int, int, str]  # layers, KV heads, head_dim, "f32", "f16" or "int8"


def read_gguf(path: str | Path) -> dict[str, Any]:
    """Read and check the header of a GGUF model, all shards of it.

    Returns:
        A dict: `version`; `metadata` (int, float, bool, str, list[str] or NumPy array by key);
        `metadata_offsets` (byte offset of each value in the first shard); `tensors` (tuples of
        name, type name, shape, shard index, absolute offset, bytes); `shards` (tuples of path,
        device, inode, bytes, mtime_ns, header bytes).

    Raises:
        InvalidModelError: The file is damaged, hostile or inconsistent.
        UnsupportedError: The file is valid but uses something eLLM does not read.
    """
    model: dict[str, Any] = _core.read_gguf(path)
    return model


def supported_isas() -> list[str]:
    """Return the instruction sets that are compiled in and that this CPU has, lowest first."""
    names: list[str] = _core.supported_isas()
    return names


def choose_isa() -> str:
    """Return the instruction set to use: `ELLM_ISA` if set, else the highest supported.

    Raises:
        ConfigError: `ELLM_ISA` names one that this CPU or build does not have.
    """
    isa: str = _core.choose_isa(os.environ.get("ELLM_ISA") or "auto")
    return isa


def weight_formats() -> list[dict[str, Any]]:
    """Return name, ggml_type, block_weights, block_bytes and integer_codes of every format."""
    formats: list[dict[str, Any]] = _core.weight_formats()
    return formats


def image_bytes(format_name: str, rows: int, cols: int) -> int:
    """Return the bytes of a (rows, cols) matrix as kernels read it.

    Raises:
        UnsupportedError: The format is unknown or `cols` is no multiple of its block.
    """
    size: int = _core.image_bytes(format_name, rows, cols)
    return size


def repack(
    format_name: str, rows: int, cols: int, source: Bytes, target: Bytes, cpus: Sequence[int]
) -> None:
    """Write the tiles of a matrix to `target` (image_bytes) from GGUF bytes, on `cpus`."""
    _core.repack(format_name, rows, cols, source, target, list(cpus))


def decode(format_name: str, image: Bytes, rows: int, cols: int) -> Floats:
    """Return float32 (rows, cols) of an image: the inverse of `repack` and then decoding."""
    out = np.empty((rows, cols), dtype=np.float32)
    _core.decode(format_name, image, out)
    return out


def multiply(
    format_name: str,
    isa: str,
    image: Bytes,
    x: Floats,
    rows: int,
    *,
    rows_per_call: int = 8,
    expanded: bool = False,
) -> Floats:
    """Return x (T, cols) @ weight.T as a step of few rows, or with `expanded` of many, computes it.

    The result is (T, rows); an ISA without an expanded form takes the other.
    """
    y = np.empty((x.shape[0], rows), dtype=np.float32)
    _core.multiply(format_name, isa, image, x, y, rows_per_call, expanded)
    return y


def read_bandwidth_gb_per_s(cpus: Sequence[int], nbytes: int, seconds: float) -> float:
    """Return 1e9 bytes per second that one thread on each of `cpus` reads, of `nbytes` in all."""
    bandwidth: float = _core.read_bandwidth_gb_per_s(list(cpus), nbytes, seconds)
    return bandwidth


def kv_block_bytes(kv: KvShape) -> int:
    """Return the bytes of one KV block of 64 tokens, all layers and heads."""
    size: int = _core.kv_block_bytes(kv)
    return size


def kv_float_block_bytes(kv: KvShape) -> int:
    """Return the bytes of the float form of an int8 KV block in use; 0 for other types."""
    size: int = _core.kv_float_block_bytes(kv)
    return size


def weight(format_name: str, rows: int, cols: int, image: Bytes, bias: Floats | None) -> Any:
    """Return a native matrix over `image`, which it keeps alive."""
    return _core.Weight(format_name, rows, cols, image, bias)


def executor(**options: Any) -> Any:
    """Return a native executor without ops; see native/bindings/bind_executor.cc."""
    return _core.Executor(**options)


class SuffixIndex:
    """A growing text and the longest suffix of it that it had before.

    Not safe for several threads at once: `extend` may give up the GIL. How it works is said in
    native/text/suffix_index.h.
    """

    def __init__(self) -> None:
        """Start with an empty text."""
        self._native: Any = _core.SuffixIndex()

    def extend(self, tokens: Tokens) -> None:
        """Append tokens (n,), each in amortised constant time.

        Raises:
            CapacityError: The text would be longer than 2**31 - 2 tokens; nothing was appended.
        """
        self._native.extend(tokens)

    def match(self) -> tuple[int, int]:
        """Return the length of the suffix, and the position behind its latest earlier place.

        That place may overlap the end of the text; where many repeats nest, it may be an older one.
        Without a match: 0 and the length of the text.
        """
        found: tuple[int, int] = self._native.match()
        return found

    def __len__(self) -> int:
        """Return the tokens of the text."""
        return len(self._native)

    @property
    def bytes(self) -> int:
        """Memory held."""
        held: int = self._native.bytes
        return held
