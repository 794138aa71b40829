"""The matrices of a model as kernels read them: repacked once, kept in the cache, mapped."""

from __future__ import annotations

import json
import logging
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ellm import native
from ellm.formats.quantization import decode
from ellm.hub.paths import cache_root
from ellm.program.ops import Embed, GatedLinear, Head, Linear, LinearAdd, LinearPart, Program

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Progress = Callable[[int, int], None]  # bytes done, bytes in all

_LOGGER = logging.getLogger(__name__)

# Part of the image's header: a file of another layout is made again. Raise it with any change of
# native/kernels/linear/quantized_layout.h or of a format's scale plane.
LAYOUT_VERSION = 1
_MAGIC = b"eLLMimg\0"
_ALIGNMENT = 4096


class TensorLike(Protocol):
    """How one tensor is stored."""

    @property
    def type_name(self) -> str:
        """Weight format."""

    @property
    def shape(self) -> tuple[int, ...]:
        """NumPy order."""


class WeightSource(Protocol):
    """A model file: tensors by name, their raw bytes, and a digest of the file."""

    @property
    def tensors(self) -> Mapping[str, TensorLike]:
        """Every tensor of the file."""

    @property
    def fingerprint(self) -> str:
        """Hex digest that changes with the file."""

    def read(self, name: str) -> Bytes:
        """Return the raw bytes of a tensor."""


@dataclass(frozen=True, slots=True)
class MatrixPlace:
    """Where a matrix lies in the image."""

    name: str
    type_name: str
    rows: int
    cols: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The places of all matrices of a program; computed from the file's header alone."""

    places: tuple[MatrixPlace, ...]
    header: bytes
    total_bytes: int

    @classmethod
    def plan(cls, program: Program, source: WeightSource) -> ImageLayout:
        """Return where every matrix of `program` goes.

        Raises:
            UnsupportedError: A matrix has a shape that its format cannot hold.
        """
        places: list[MatrixPlace] = []
        offset = 0
        for name in matrix_names(program):
            tensor = source.tensors[name]
            rows, cols = tensor.shape
            nbytes = native.image_bytes(tensor.type_name, rows, cols)
            places.append(MatrixPlace(name, tensor.type_name, rows, cols, offset, nbytes))
            offset += _round_up(nbytes)
        listing = [[p.name, p.type_name, p.rows, p.cols, p.offset, p.nbytes] for p in places]
        text = json.dumps(
            {"layout": LAYOUT_VERSION, "file": source.fingerprint, "matrices": listing}
        ).encode()
        header = _MAGIC + len(text).to_bytes(8, "little") + text
        header += bytes(_round_up(len(header)) - len(header))
        return cls(tuple(places), header, len(header) + offset)


class Weights:
    """The weights of one model in memory: matrices as images, vectors as float32."""

    def __init__(self, layout: ImageLayout, image: Bytes, source: WeightSource) -> None:
        """Wrap the image; vectors are read from `source` when asked for."""
        self._image = image
        self._source = source
        self._places = {place.name: place for place in layout.places}
        self._first = len(layout.header)
        self._vectors: dict[str, Floats] = {}

    @property
    def image_bytes(self) -> int:
        """Bytes of the image."""
        return self._image.size

    def place(self, name: str) -> MatrixPlace:
        """Return the format and shape of a matrix."""
        return self._places[name]

    def matrix(self, name: str) -> Bytes:
        """Return the image of a matrix, uint8."""
        place = self._places[name]
        begin = self._first + place.offset
        return self._image[begin : begin + place.nbytes]

    def vector(self, name: str) -> Floats:
        """Return a norm or bias as float32 (n,)."""
        if name not in self._vectors:
            tensor = self._source.tensors[name]
            self._vectors[name] = decode(tensor.type_name, self._source.read(name), tensor.shape)
        return self._vectors[name]


def load_weights(
    program: Program,
    source: WeightSource,
    *,
    cpus: Sequence[int],
    mapped: bool = True,
    progress: Progress | None = None,
) -> Weights:
    """Return the weights of `program`, from the cached image if there is one of this very file.

    Without one the matrices are repacked, into a cache file that is then mapped, or where none can
    be written into memory. `mapped=False` copies the image to memory (huge pages, no page cache).

    Raises:
        InvalidModelError: The model file changed while it was read.
        UnsupportedError: A matrix has a shape that its format cannot hold.
    """
    layout = ImageLayout.plan(program, source)
    path = _image_path(source)
    image = _open_image(path, layout, mapped=mapped)
    if image is None:
        image = _make_image(path, layout, source, cpus, progress)
        if not mapped:
            image = _copy_to_memory(image)
    return Weights(layout, image, source)


def has_image(source: WeightSource) -> bool:
    """Return whether the weights of this very file were repacked into the cache before."""
    return _image_path(source).is_file()


def matrix_names(program: Program) -> list[str]:
    """Return the matrices of a program in the order a step reads them."""
    names: dict[str, None] = {}
    for op in program.ops:
        match op:
            case Linear(parts=parts):
                names |= dict.fromkeys(part.weight for part in parts)
            case LinearAdd(part=LinearPart(weight=weight)) | Embed(weight=weight):
                names[weight] = None
            case GatedLinear(gate=gate, up=up):
                names |= {gate.weight: None, up.weight: None}
            case Head(weight=weight):
                names[weight] = None
    return list(names)


def _image_path(source: WeightSource) -> Path:
    return cache_root() / "images" / f"{source.fingerprint}-{LAYOUT_VERSION}.image"


def _round_up(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _open_image(path: Path, layout: ImageLayout, *, mapped: bool) -> Bytes | None:
    """Return the image at `path` if it is whole and of this model, else None."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != layout.total_bytes:
                return None
            if file.read(len(layout.header)) != layout.header:
                return None
            if mapped:
                return _map(file.fileno(), layout.total_bytes)
            image = _allocate(layout.total_bytes)
            file.seek(0)
            return image if file.readinto(image.data) == image.size else None
    except OSError:
        return None


def _make_image(
    path: Path,
    layout: ImageLayout,
    source: WeightSource,
    cpus: Sequence[int],
    progress: Progress | None,
) -> Bytes:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own, renamed when whole: a mapping of an older image stays valid, and two
        # processes that start together do not meet in one file.
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    except OSError as error:
        return _repack_in_memory(layout, source, cpus, progress, reason=error)
    partial = Path(name)
    try:
        try:
            os.posix_fallocate(descriptor, 0, layout.total_bytes)
            image = _map(descriptor, layout.total_bytes, writable=True)
        except OSError as error:
            return _repack_in_memory(layout, source, cpus, progress, reason=error)
        _repack(layout, source, image, cpus, progress)
        partial.replace(path)
        return _map(descriptor, layout.total_bytes)
    finally:
        os.close(descriptor)
        partial.unlink(missing_ok=True)


def _repack_in_memory(
    layout: ImageLayout,
    source: WeightSource,
    cpus: Sequence[int],
    progress: Progress | None,
    *,
    reason: OSError,
) -> Bytes:
    _LOGGER.warning(
        "the repacked weights cannot be kept in %s (%s); every start will repack them",
        cache_root() / "images",
        reason.strerror,
    )
    image = _allocate(layout.total_bytes)
    _repack(layout, source, image, cpus, progress)
    return image


def _repack(
    layout: ImageLayout,
    source: WeightSource,
    image: Bytes,
    cpus: Sequence[int],
    progress: Progress | None,
) -> None:
    first = len(layout.header)
    done, total = 0, sum(place.nbytes for place in layout.places)
    for place in layout.places:
        begin = first + place.offset
        target = image[begin : begin + place.nbytes]
        data = source.read(place.name)
        native.repack(place.type_name, place.rows, place.cols, data, target, cpus)
        done += place.nbytes
        if progress is not None:
            progress(done, total)
    image[:first] = np.frombuffer(layout.header, dtype=np.uint8)


def _map(descriptor: int, nbytes: int, *, writable: bool = False) -> Bytes:
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    mapping = mmap.mmap(descriptor, nbytes, access=access)
    if not writable:
        mapping.madvise(mmap.MADV_WILLNEED)
    return np.frombuffer(mapping, dtype=np.uint8)


def _allocate(nbytes: int) -> Bytes:
    """Return zeroed memory in huge pages where the system gives them."""
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, dtype=np.uint8)


def _copy_to_memory(image: Bytes) -> Bytes:
    copy = _allocate(image.size)
    copy[:] = image
    return copy
