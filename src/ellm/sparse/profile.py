"""What `ellm calibrate` found about a model: how much of the KV cache its heads need."""

from __future__ import annotations

import json
import logging
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ellm.hub.paths import cache_root
from ellm.program.executor import HeadFactors

FORMAT = 1
MAX_FACTOR = 1000.0
MAX_FIGURE = 2**53
_COUNTS = ("length_tokens", "positions")

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutFigures:
    """What was measured on a text that calibration had not seen, against exact attention.

    Attributes:
        text: Its name.
        length_tokens: Depth.
        positions: Predictions compared.
        mean_kl: Mean KL(exact || sparse) in nats.
        p99_kl: Its 99th percentile.
        same_top: Share of positions with the same likeliest token.
        blocks_read_share: Share of the KV blocks that were read in full.
    """

    text: str
    length_tokens: int
    positions: int
    mean_kl: float
    p99_kl: float
    same_top: float
    blocks_read_share: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SparseProfile:
    """Everything `sparse` and `auto` take from calibration.

    Attributes:
        fingerprint: Of the model file.
        mass: Share of the attention to read by default.
        sparse_from_tokens: Depth from which on sparse steps were faster than exact ones.
        heads: How heads differ; shapes (L, Hkv) and (L, Hq).
        max_kl: Mean KL that was asked for.
        held_out: What it comes to.
    """

    fingerprint: str
    mass: float
    sparse_from_tokens: int
    heads: HeadFactors
    max_kl: float
    held_out: tuple[HeldOutFigures, ...]

    @property
    def streaming_heads(self) -> int:
        """KV heads that read the first block and the window alone."""
        return int(np.isinf(self.heads.allowances).sum())

    @property
    def dense_heads(self) -> int:
        """KV heads that read everything."""
        return int((self.heads.allowances == 0).sum())


def profile_path(fingerprint: str) -> Path:
    """Return where the profile of a model is kept."""
    return cache_root() / "profiles" / f"{fingerprint}.json"


def save_profile(profile: SparseProfile) -> Path:
    """Write a profile, in place of an older one, and return its path.

    Raises:
        OSError: It cannot be written; the older one is unchanged.
    """
    path = profile_path(profile.fingerprint)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(_values(profile), indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def find_profile(
    fingerprint: str, *, num_layers: int, num_kv_heads: int, num_heads: int
) -> SparseProfile | None:
    """Return the profile of a model, or None if there is none that can be used.

    One that cannot be used is told to the log: calibrating again mends it.
    """
    path = profile_path(fingerprint)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        _LOGGER.warning("the profile %s cannot be read (%s); calibrate again", path, error)
        return None
    try:
        profile = parse_profile(text)
        _require(profile.fingerprint == fingerprint, "it is of another model")
        shapes = (profile.heads.allowances.shape, profile.heads.scales.shape)
        expected = ((num_layers, num_kv_heads), (num_layers, num_heads))
        _require(shapes == expected, f"shapes {shapes}, expected {expected}")
    except ValueError as error:
        _LOGGER.warning("the profile %s is not used: %s; calibrate again", path, error)
        return None
    return profile


def parse_profile(text: str) -> SparseProfile:
    """Return the profile in a file's text.

    Raises:
        ValueError: It is not a profile of this version, or a value is out of range.
    """
    try:
        values = json.loads(text)
        _require(isinstance(values, dict), "it is no object")
        _require(values.get("format") == FORMAT, f"format {values.get('format')!r}")
        held_out = tuple(_figures(item) for item in values["held_out"])
        allowances = _matrix("allowances", values["allowances"])
        scales = _matrix("scales", values["scales"])
        mass, max_kl = float(values["mass"]), float(values["max_kl"])
        sparse_from = int(values["sparse_from_tokens"])
        fingerprint = str(values["fingerprint"])
    except (TypeError, KeyError, RecursionError, OverflowError) as error:
        raise ValueError(f"it cannot be understood ({error!r:.200})") from error
    _require(0 < mass <= 1, f"mass {mass}")
    _require(0 <= max_kl < math.inf, f"max_kl {max_kl}")
    _require(0 <= sparse_from < 2**31, f"sparse_from_tokens {sparse_from}")
    _require(bool((scales > 0).all() and (scales <= MAX_FACTOR).all()), "a scale is out of range")
    return SparseProfile(
        fingerprint=fingerprint,
        mass=mass,
        sparse_from_tokens=sparse_from,
        heads=HeadFactors(allowances, scales),
        max_kl=max_kl,
        held_out=held_out,
    )


def _values(profile: SparseProfile) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "fingerprint": profile.fingerprint,
        "mass": profile.mass,
        "sparse_from_tokens": profile.sparse_from_tokens,
        "max_kl": profile.max_kl,
        "held_out": [asdict(item) for item in profile.held_out],
        # Infinity is no JSON: a head that reads the window alone is null.
        "allowances": [
            [float(x) if math.isfinite(x) else None for x in row]
            for row in profile.heads.allowances
        ],
        "scales": [[float(x) for x in row] for row in profile.heads.scales],
    }


def _figures(item: Any) -> HeldOutFigures:
    found = HeldOutFigures(**item)
    for name, value in asdict(found).items():
        kinds = str if name == "text" else int if name in _COUNTS else int | float
        ok = isinstance(value, kinds) and not isinstance(value, bool)
        _require(ok and (name == "text" or 0 <= value < MAX_FIGURE), f"{name} {value!r:.80}")
    return found


def _matrix(name: str, rows: Any) -> NDArray[np.float32]:
    values = [[math.inf if x is None else float(x) for x in row] for row in rows]
    _require(len({len(row) for row in values}) == 1, f"{name} are no matrix")
    matrix = np.array(values, dtype=np.float64)
    # Before float32, where a large number would be infinity; NaN fails the comparison.
    in_range = ((matrix >= 0) & (matrix <= MAX_FACTOR)) | np.isposinf(matrix)
    _require(bool(in_range.all()), f"{name} are not all numbers from 0 to {MAX_FACTOR:g}")
    return matrix.astype(np.float32)


def _require(ok: bool, found: str) -> None:  # noqa: FBT001
    if not ok:
        raise ValueError(found)
