"""An exit is there again as it was saved; what is no exit of the model is told, not used."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ellm.program import exit_store
from ellm.program.exit_figures import DepthFigures, ExitFigures
from ellm.program.exit_store import ShallowExit, exit_path, find_exit, save_exit

FINGERPRINT = "0123abcd"
SIZE = 6
EXIT = ShallowExit(
    fingerprint=FINGERPRINT,
    layer=14,
    weight=np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float16),
    bias=np.random.default_rng(1).standard_normal(SIZE).astype(np.float32),
    figures=ExitFigures(
        num_layers=28,
        learnt_tokens=7000,
        depth_tokens=192,
        step_seconds=(1 / 3, 0.4, 0.5, 0.6, 0.7),
        depths=(
            DepthFigures(layer=7, agreed=0, positions=512, exit_seconds=0.1),
            DepthFigures(layer=14, agreed=500, positions=512, exit_seconds=0.2),
        ),
    ),
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELLM_CACHE", str(tmp_path))


def found(fingerprint: str = FINGERPRINT, **changes: int) -> ShallowExit | None:
    return find_exit(fingerprint, **({"num_layers": 28, "hidden_size": SIZE} | changes))


def same(exit_: ShallowExit | None) -> bool:
    return (
        exit_ is not None
        and (exit_.fingerprint, exit_.layer, exit_.figures)
        == (EXIT.fingerprint, EXIT.layer, EXIT.figures)
        and exit_.weight.dtype == np.float16
        and exit_.bias.dtype == np.float32
        and np.array_equal(exit_.weight, EXIT.weight)
        and np.array_equal(exit_.bias, EXIT.bias)
    )


def write(*, about: dict[str, Any] | None = None, **arrays: Any) -> None:
    """Write an exit with other values in its file."""
    path = save_exit(EXIT)
    with np.load(path) as archive:
        parts = {name: archive[name] for name in archive.files}
    if about is not None:
        values = json.loads(parts["about"].tobytes()) | about
        parts["about"] = np.frombuffer(json.dumps(values).encode(), dtype=np.uint8)
    with path.open("wb") as file:
        np.savez(file, **(parts | arrays))


def test_it_comes_back_as_it_was_saved_and_is_its_owner_s_alone() -> None:
    assert found() is None
    path = save_exit(EXIT)
    assert path == exit_path(FINGERPRINT)
    assert path.stat().st_mode & 0o777 == 0o600
    assert same(found())
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_another_takes_its_place_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_exit(EXIT)
    other = dataclasses.replace(EXIT, layer=7)

    def full(*_arguments: object, **_arrays: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(exit_store.np, "savez", full)
        with pytest.raises(OSError, match="No space left"):
            save_exit(other)
    assert same(found())
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    save_exit(other)
    again = found()
    assert again is not None
    assert again.layer == 7


def test_damage_anywhere_is_told_and_never_used(caplog: pytest.LogCaptureFixture) -> None:
    whole = save_exit(EXIT).read_bytes()
    path = exit_path(FINGERPRINT)
    rng = np.random.default_rng(0)
    for place in range(0, len(whole), 3):
        for data in (whole[:place], _with_bit_flipped(whole, place, int(rng.integers(8)))):
            path.write_bytes(data)
            caplog.clear()
            result = found()
            # Names and times in the archive's directory change nothing.
            assert result is None or same(result)
            assert (len(caplog.records) == 1) is (result is None)
    path.write_bytes(rng.integers(0, 256, 500, dtype=np.uint8).tobytes())
    assert found() is None


def _with_bit_flipped(data: bytes, place: int, bit: int) -> bytes:
    return data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"about": {"format": 2}}, "format 2"),
        ({"about": {"fingerprint": "other"}}, "of another model"),
        ({"about": {"layer": 8}}, "layer 8"),
        ({"about": {"layer": None}}, "layer None"),
        ({"about": {"figures": {}}}, "no ExitFigures"),
        ({"about": {"figures": None}}, "no ExitFigures"),
        ({"weight": EXIT.weight.astype(np.float32)}, "type float32"),
        ({"weight": EXIT.weight[:5]}, "shape"),
        ({"weight": EXIT.weight * np.float16(np.nan)}, "not finite"),
        ({"weight": np.array([[None] * SIZE] * SIZE)}, "allow_pickle"),
        ({"bias": EXIT.bias[1:]}, "shape"),
        ({"bias": np.full(SIZE, np.inf, np.float32)}, "not finite"),
        ({"more": EXIT.bias}, "parts"),
    ],
)
def test_values_that_are_no_exit_are_told(
    change: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(**change)
    caplog.set_level(logging.WARNING)
    assert found() is None
    (record,) = caplog.records
    assert message in record.getMessage()
    assert "`ellm calibrate --shallow` makes it again" in record.getMessage()


@pytest.mark.parametrize(
    "change",
    [
        {"num_layers": 27},
        {"num_layers": 14},
        {"num_layers": True},
        {"learnt_tokens": 0},
        {"learnt_tokens": 1.5},
        {"depth_tokens": 2**60},
        {"step_seconds": [0.3] * 4},
        {"step_seconds": [0.3, 0.3, 0.3, 0.3, 0]},
        {"step_seconds": [0.3, 0.3, 0.3, 0.3, float("inf")]},
        {"step_seconds": [0.3, 0.3, 0.3, 0.3, float("nan")]},
        {"step_seconds": None},
        {"depths": []},
        {"depths": None},
        {"depths": [{"layer": 14, "agreed": 2, "positions": 1, "exit_seconds": 1.0}]},
        {"depths": [{"layer": 14, "agreed": 0, "positions": 0, "exit_seconds": 1.0}]},
        {"depths": [{"layer": 14, "agreed": 0, "positions": 1, "exit_seconds": -1.0}]},
        {"depths": [{"layer": 14, "agreed": 0, "positions": 1, "exit_seconds": "1"}]},
        {"depths": [{"layer": 14, "agreed": 0, "positions": 1}]},
        {"more": 1},
    ],
)
def test_figures_out_of_range_are_told(
    change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    write(about={"figures": dataclasses.asdict(EXIT.figures) | change})
    assert found() is None
    assert len(caplog.records) == 1


@pytest.mark.parametrize("change", [{"num_layers": 29}, {"hidden_size": SIZE + 1}])
def test_an_exit_of_a_model_of_another_shape_is_told(
    change: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    save_exit(EXIT)
    assert found(**change) is None
    assert len(caplog.records) == 1


def test_what_cannot_be_read_is_told(caplog: pytest.LogCaptureFixture) -> None:
    exit_path(FINGERPRINT).mkdir(parents=True)
    assert found() is None
    assert len(caplog.records) == 1
