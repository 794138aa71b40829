"""What a calibration that was stopped has found so far, text by text, so that it can go on."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ellm.calibration.cost import StepTimes
from ellm.calibration.learning import MAX_SCALE, TextFindings, learnt_mass
from ellm.calibration.observing import HeadObservations
from ellm.calibration.plan import MASSES, CalibrationPlan
from ellm.calibration.shape import Shape
from ellm.calibration.texts import CalibrationTexts
from ellm.errors import ConfigError
from ellm.sparse.profile import HeldOutFigures, profile_path

FORMAT = 1
LEARNING = "learning"
HELD_OUT = "held-out"
# A head whose scan is off by more is clipped later; a file that says so is damaged.
_MAX_OBSERVED_SCALE = 1e30
_COUNTS = ("length_tokens", "positions", "depth_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedText:
    """What a held-out text showed.

    Attributes:
        by_mass: How far predictions were by the masses from the one that was learnt on.
        times: Of steps, measured on the last text alone.
    """

    by_mass: tuple[HeldOutFigures, ...]
    times: StepTimes | None


@dataclass(frozen=True, slots=True)
class Kept:
    """What was found so far, in the order of the texts."""

    learning: list[TextFindings]
    held_out: list[CheckedText]

    @property
    def num_texts(self) -> int:
        """Texts that are finished."""
        return len(self.learning) + len(self.held_out)


class PartFiles:
    """A file for each text that is finished, beside the profile that is to be."""

    def __init__(
        self, fingerprint: str, plan: CalibrationPlan, shape: Shape, texts: CalibrationTexts
    ) -> None:
        """Keep the parts of one model, plan and choice of texts."""
        self.folder = profile_path(fingerprint).with_suffix(".part")
        self._key = _key(fingerprint, plan, shape, texts)
        self._max_kl = plan.max_kl
        self._shape = shape
        self._texts = texts

    def load(self) -> tuple[Kept, str | None]:
        """Return what can be gone on from, and a note if something was there that cannot."""
        kept = Kept([], [])
        try:
            for values in self._values(LEARNING, len(self._texts.learning)):
                kept.learning.append(self._findings(values))
            if len(kept.learning) == len(self._texts.learning):
                first, _ = learnt_mass(kept.learning, self._max_kl)
                for values in self._values(HELD_OUT, len(self._texts.held_out)):
                    kept.held_out.append(self._checked(values, len(MASSES) - first))
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError, OSError) as error:
            note = f"what {self.folder} has is not used, starting anew: {str(error)[:200]}"
            return Kept([], []), note
        return kept, None

    def keep_learning(self, index: int, found: TextFindings) -> None:
        """Keep what a text taught.

        Raises:
            ConfigError: It cannot be written.
        """
        seen = found.observations
        self._write(
            LEARNING,
            index,
            {
                "text": found.text,
                "scales": seen.scales.tolist(),
                "read": seen.read.tolist(),
                "beyond_window": seen.beyond_window.tolist(),
                "by_mass": [asdict(each) for each in found.by_mass],
            },
        )

    def keep_held_out(self, index: int, found: CheckedText) -> None:
        """Keep what a held-out text showed.

        Raises:
            ConfigError: It cannot be written.
        """
        times = None if found.times is None else asdict(found.times)
        values = {"by_mass": [asdict(each) for each in found.by_mass], "times": times}
        self._write(HELD_OUT, index, values)

    def require_writable(self) -> None:
        """Find out now whether parts can be kept.

        Raises:
            ConfigError: They cannot.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = self.folder / f".{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise _unwritable(error, self.folder) from error

    def delete(self) -> None:
        """Delete all parts."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, stage: str, index: int) -> Path:
        return self.folder / f"{stage}-{index}.json"

    def _write(self, stage: str, index: int, values: dict[str, Any]) -> None:
        path = self._path(stage, index)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        head = {"format": FORMAT, "key": self._key, "stage": stage, "index": index}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(head | values, allow_nan=False), encoding="utf-8")
            part.replace(path)
        except OSError as error:
            raise _unwritable(error, self.folder) from error
        finally:
            # Where the folder cannot be made, there is no part either.
            with suppress(OSError):
                part.unlink()

    def _values(self, stage: str, count: int) -> Iterator[dict[str, Any]]:
        """Yield what the files of a stage hold, up to the first that is not there."""
        for index in range(count):
            try:
                values = json.loads(self._path(stage, index).read_text(encoding="utf-8"))
            except FileNotFoundError:
                return
            _require(isinstance(values, dict), "a file holds no object")
            _require(values.get("format") == FORMAT, f"format {values.get('format')!r:.80}")
            _require(values.get("key") == self._key, "it is of another plan, text or model")
            _require((values["stage"], values["index"]) == (stage, index), "a file was renamed")
            yield values

    def _findings(self, values: dict[str, Any]) -> TextFindings:
        layers, kv_heads = self._shape.num_layers, self._shape.num_kv_heads
        heads = (layers, self._shape.num_heads)
        scales = _array(values["scales"], heads, _MAX_OBSERVED_SCALE)
        _require(bool((scales > 0).all()), "a scale of 0")
        by_mass = _by_mass(values["by_mass"], len(MASSES))
        _require(isinstance(values["text"], str), "a text without a name")
        observations = HeadObservations(
            scales=scales,
            read=_array(values["read"], (layers, kv_heads, len(MASSES)), 1.0 + 1e-9),
            beyond_window=_array(values["beyond_window"], (layers, kv_heads), 1.0 + 1e-3),
        )
        return TextFindings(text=values["text"], observations=observations, by_mass=by_mass)

    def _checked(self, values: dict[str, Any], num_masses: int) -> CheckedText:
        times = values["times"]
        is_last = values["index"] == len(self._texts.held_out) - 1
        _require((times is not None) == is_last, "the last text has the times, others none")
        return CheckedText(
            by_mass=_by_mass(values["by_mass"], num_masses),
            times=None if times is None else StepTimes(**_numbers(times, StepTimes)),
        )


def _by_mass(items: Any, count: int) -> tuple[HeldOutFigures, ...]:
    _require(isinstance(items, list) and len(items) == count, f"no list of {count} figures")
    return tuple(HeldOutFigures(**_numbers(item, HeldOutFigures)) for item in items)


def _numbers(item: Any, kind: type[HeldOutFigures | StepTimes]) -> dict[str, Any]:
    """Return an object that has the fields of a kind, each a number in range but for the name."""
    names = {field.name for field in fields(kind)}
    _require(isinstance(item, dict) and set(item) == names, f"no {kind.__name__}")
    for name, value in item.items():
        if name == "text":
            _require(isinstance(value, str), "a text without a name")
            continue
        allowed = int if name in _COUNTS else int | float
        ok = isinstance(value, allowed) and not isinstance(value, bool)
        _require(ok and math.isfinite(value) and 0 <= value < 2**53, f"{name} {value!r:.80}")
    return dict(item)


def _array(values: Any, shape: tuple[int, ...], most: float) -> NDArray[np.float64]:
    array = np.array(values, dtype=np.float64)
    _require(array.shape == shape, f"an array of shape {array.shape}, expected {shape}")
    # NaN fails the comparison.
    _require(bool(((array >= 0) & (array <= most)).all()), "an array has values out of range")
    return array


def _key(fingerprint: str, plan: CalibrationPlan, shape: Shape, texts: CalibrationTexts) -> str:
    """Return what differs for everything that changes what is found."""
    tokens = [
        [passage.text, *passage.prompt, *passage.tail, *passage.following]
        for passage in (*texts.learning, *texts.held_out)
    ]
    values = [FORMAT, MAX_SCALE, MASSES, fingerprint, asdict(plan), asdict(shape), tokens]
    digest = hashlib.blake2b(json.dumps(values).encode(), digest_size=16)
    return digest.hexdigest()


def _unwritable(error: OSError, folder: Path) -> ConfigError:
    reason = error.strerror or error
    return ConfigError(f"cannot write to {folder}: {reason}; ELLM_CACHE names another cache")


def _require(ok: bool, found: str) -> None:  # noqa: FBT001
    if not ok:
        raise ValueError(found)
