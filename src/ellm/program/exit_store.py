"""The exit that `ellm calibrate --shallow` fitted to a model, in a file beside its profile."""

from __future__ import annotations

import json
import logging
import math
import os
import zipfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ellm.hub.paths import cache_root
from ellm.program.executor import Floats
from ellm.program.exit_figures import MAX_CHAIN, DepthFigures, ExitFigures

FORMAT = 1
_MOST_COUNT = 2**53
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShallowExit:
    """A fitted exit and what it was measured to be worth, also where it is not worth taking.

    Attributes:
        fingerprint: Of the model file.
        layer: Layers that run before it, 1 to L - 1.
        weight: float16 (E, E).
        bias: float32 (E,).
        figures: Of this exit and of the others that were tried.
    """

    fingerprint: str
    layer: int
    weight: NDArray[np.float16]
    bias: Floats
    figures: ExitFigures

    @property
    def pays(self) -> bool:
        """Whether drafts from it make answers 5 % faster, by its own figures."""
        return self.figures.pays


def exit_path(fingerprint: str) -> Path:
    """Return where the exit of a model is kept."""
    return cache_root() / "profiles" / f"{fingerprint}.shallow.npz"


def save_exit(exit_: ShallowExit) -> Path:
    """Write an exit for its owner alone, in place of an older one, and return its path.

    Raises:
        OSError: It cannot be written; the older one is unchanged.
    """
    path = exit_path(exit_.fingerprint)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    about = json.dumps(_about(exit_), allow_nan=False).encode()
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            np.savez(
                file,
                about=np.frombuffer(about, dtype=np.uint8),
                weight=exit_.weight,
                bias=exit_.bias,
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def find_exit(fingerprint: str, *, num_layers: int, hidden_size: int) -> ShallowExit | None:
    """Return the exit of a model, or None if there is none that can be used.

    One that cannot be used is told to the log: probing again mends it.
    """
    path = exit_path(fingerprint)
    try:
        found = _read(path, hidden_size)
        _require(found.fingerprint == fingerprint, "it is of another model")
        _require(found.figures.num_layers == num_layers, f"{found.figures.num_layers} layers")
    except FileNotFoundError:
        return None
    # What zipfile and NumPy raise for a damaged archive, besides what is raised here.
    except (
        *(OSError, ValueError, TypeError, KeyError, EOFError, OverflowError),
        *(RecursionError, MemoryError, NotImplementedError, RuntimeError, zipfile.BadZipFile),
    ) as error:
        _LOGGER.warning(
            "the exit %s is not used (%.200s); `ellm calibrate --shallow` makes it again",
            path,
            error,
        )
        return None
    return found


def _read(path: Path, hidden_size: int) -> ShallowExit:
    with path.open("rb") as file:
        # NumPy takes what is no archive for a pickle, and its message advises to trust it.
        _require(zipfile.is_zipfile(file), "it is no archive")
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            _require(set(archive.files) == {"about", "weight", "bias"}, f"parts {archive.files}")
            about = _array(archive["about"], np.uint8, None)
            weight = _array(archive["weight"], np.float16, (hidden_size, hidden_size))
            bias = _array(archive["bias"], np.float32, (hidden_size,))
    values = json.loads(about.tobytes())
    _require(isinstance(values, dict), "it is no object")
    _require(values.get("format") == FORMAT, f"format {values.get('format')!r:.80}")
    figures = _figures(values["figures"])
    layer = values["layer"]
    _require(layer in [depth.layer for depth in figures.depths], f"layer {layer!r:.80}")
    return ShallowExit(
        fingerprint=str(values["fingerprint"]),
        layer=layer,
        weight=weight,
        bias=bias,
        figures=figures,
    )


def _about(exit_: ShallowExit) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "fingerprint": exit_.fingerprint,
        "layer": exit_.layer,
        "figures": asdict(exit_.figures),
    }


def _figures(values: Any) -> ExitFigures:
    _require_fields(values, ExitFigures)
    step_seconds = values["step_seconds"]
    _require(isinstance(step_seconds, list) and len(step_seconds) == MAX_CHAIN + 1, "no step times")
    num_layers = _count("num_layers", values["num_layers"])
    depths = tuple(_depth(item, num_layers) for item in values["depths"])
    _require(bool(depths), "no depths")
    return ExitFigures(
        num_layers=num_layers,
        learnt_tokens=_count("learnt_tokens", values["learnt_tokens"]),
        depth_tokens=_count("depth_tokens", values["depth_tokens"]),
        step_seconds=tuple(_seconds(value) for value in step_seconds),
        depths=depths,
    )


def _depth(values: Any, num_layers: int) -> DepthFigures:
    _require_fields(values, DepthFigures)
    found = DepthFigures(
        layer=_count("layer", values["layer"]),
        agreed=_count("agreed", values["agreed"], least=0),
        positions=_count("positions", values["positions"]),
        exit_seconds=_seconds(values["exit_seconds"]),
    )
    _require(found.layer < num_layers, f"layer {found.layer} of {num_layers}")
    _require(found.agreed <= found.positions, f"{found.agreed} of {found.positions} agreed")
    return found


def _array(
    array: NDArray[Any], kind: type[np.generic], shape: tuple[int, ...] | None
) -> NDArray[Any]:
    _require(array.dtype == kind, f"numbers of type {array.dtype}")
    _require(shape is None or array.shape == shape, f"shape {array.shape}, expected {shape}")
    _require(bool(np.isfinite(array).all()), "a number that is not finite")
    return array


def _require_fields(values: Any, kind: type[ExitFigures | DepthFigures]) -> None:
    names = {field.name for field in fields(kind)}
    _require(isinstance(values, dict) and set(values) == names, f"no {kind.__name__}")


def _count(name: str, value: Any, *, least: int = 1) -> int:
    ok = isinstance(value, int) and not isinstance(value, bool)
    _require(ok and least <= value < _MOST_COUNT, f"{name} {value!r:.80}")
    return int(value)


def _seconds(value: Any) -> float:
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    _require(ok and 0 < value < math.inf, f"seconds {value!r:.80}")
    return float(value)


def _require(ok: bool, found: str) -> None:  # noqa: FBT001
    if not ok:
        raise ValueError(found)
