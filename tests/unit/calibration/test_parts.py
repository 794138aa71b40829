"""What a calibration has found is there again afterwards, or is not used at all."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ellm.calibration.cost import StepTimes
from ellm.calibration.parts import CheckedText, PartFiles
from ellm.calibration.plan import MASSES, CalibrationPlan
from ellm.calibration.texts import CalibrationTexts
from ellm.errors import ConfigError
from ellm.quality.fidelity import Passage

from .findings import SHAPE, figures, findings

PLAN = CalibrationPlan(length_tokens=1024, tail_tokens=20)
TIMES = StepTimes(depth_tokens=1024, shallow_seconds=0.1, exact_seconds=1 / 3, sparse_seconds=0.2)
FINGERPRINT = "0123abcd"


def passage(first: int) -> Passage:
    tokens = list(range(first, first + 1045))
    return Passage(
        text=f"t{first}",
        length_tokens=1024,
        prompt=tokens[:1024],
        tail=tokens[1024:1044],
        following=tokens[1025:],
        parts={},
    )


TEXTS = CalibrationTexts(
    learning=(passage(1), passage(2)), held_out=(passage(3), passage(4)), notes=()
)
NEAR = (figures(1 / 3 * 1e-3),) * len(MASSES)


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PartFiles:
    monkeypatch.setenv("ELLM_CACHE", str(tmp_path))
    return PartFiles(FINGERPRINT, PLAN, SHAPE, TEXTS)


@pytest.fixture
def full(parts: PartFiles) -> PartFiles:
    """Return the parts of a calibration that was stopped just before its end."""
    rng = np.random.default_rng(0)
    for index in range(2):
        found = findings()
        for array in (found.observations.read, found.observations.beyond_window):
            array[:] = rng.random(array.shape)
        found.observations.scales[:] = rng.lognormal(0, 1, found.observations.scales.shape)
        parts.keep_learning(index, found)
    parts.keep_held_out(0, CheckedText(by_mass=NEAR, times=None))
    parts.keep_held_out(1, CheckedText(by_mass=NEAR, times=TIMES))
    return parts


def test_nothing_is_there_before_anything_is_kept(parts: PartFiles) -> None:
    kept, note = parts.load()
    assert (kept.num_texts, note) == (0, None)


def test_what_is_kept_is_there_again_to_the_last_bit(full: PartFiles, parts: PartFiles) -> None:
    kept, note = parts.load()
    assert note is None
    assert kept.num_texts == 4
    again = PartFiles(FINGERPRINT, PLAN, SHAPE, TEXTS)
    for index, found in enumerate(kept.learning):
        again.keep_learning(index, found)
    for index, found in enumerate(kept.held_out):
        again.keep_held_out(index, found)
    twice, _ = full.load()
    for one, other in zip(kept.learning, twice.learning, strict=True):
        assert one.by_mass == other.by_mass
        for name in ("scales", "read", "beyond_window"):
            first, second = getattr(one.observations, name), getattr(other.observations, name)
            assert first.tobytes() == second.tobytes()
    assert kept.held_out == twice.held_out
    assert kept.held_out[1].times == TIMES


def test_files_are_whole_or_not_there(full: PartFiles) -> None:
    names = sorted(path.name for path in full.folder.iterdir())
    assert names == ["held-out-0.json", "held-out-1.json", "learning-0.json", "learning-1.json"]


@pytest.mark.parametrize("missing", ["learning-0", "learning-1", "held-out-0", "held-out-1"])
def test_it_goes_on_from_the_first_text_that_is_missing(full: PartFiles, missing: str) -> None:
    (full.folder / f"{missing}.json").unlink()
    kept, note = full.load()
    assert note is None
    expected = {"learning-0": 0, "learning-1": 1, "held-out-0": 2, "held-out-1": 3}
    assert kept.num_texts == expected[missing]


def test_deleted_parts_are_gone(full: PartFiles) -> None:
    full.delete()
    assert not full.folder.exists()
    assert full.load()[0].num_texts == 0
    full.delete()


OTHERS: dict[str, tuple[Any, ...]] = {
    "plan": (FINGERPRINT, dataclasses.replace(PLAN, max_kl=0.003), SHAPE, TEXTS),
    "tail": (FINGERPRINT, dataclasses.replace(PLAN, tail_tokens=21), SHAPE, TEXTS),
    "shape": (FINGERPRINT, PLAN, dataclasses.replace(SHAPE, choosing=(True, False)), TEXTS),
    "texts": (FINGERPRINT, PLAN, SHAPE, dataclasses.replace(TEXTS, learning=TEXTS.learning[::-1])),
    "one more": (
        *(FINGERPRINT, PLAN, SHAPE),
        dataclasses.replace(TEXTS, held_out=(*TEXTS.held_out, passage(9))),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_parts_of_something_else_are_not_used(full: PartFiles, name: str) -> None:
    kept, note = PartFiles(*OTHERS[name]).load()
    assert kept.num_texts == 0
    assert note is not None
    assert "another plan, text or model" in note
    assert "starting anew" in note
    assert full.load()[0].num_texts == 4


def test_parts_of_a_copied_model_s_folder_are_not_used(full: PartFiles) -> None:
    full.folder.rename(full.folder.with_name("ffff.part"))
    kept, note = PartFiles("ffff", PLAN, SHAPE, TEXTS).load()
    assert (kept.num_texts, "another plan" in str(note)) == (0, True)


def replaced(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    def change(values: dict[str, Any]) -> object:
        values[name] = value
        return values

    return change


def in_figures(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    def change(values: dict[str, Any]) -> object:
        values["by_mass"][3][name] = value
        return values

    return change


def in_array(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    def change(values: dict[str, Any]) -> object:
        values[name][1][1] = value
        return values

    return change


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no object": lambda _values: [],
    "null": lambda _values: None,
    "another format": replaced("format", 2),
    "no format": replaced("format", None),
    "another key": replaced("key", "0" * 32),
    "another stage": replaced("stage", "held-out"),
    "another index": replaced("index", 1),
    "no figures": replaced("by_mass", None),
    "figures of one mass": lambda values: values | {"by_mass": values["by_mass"][:1]},
    "figures of ten masses": lambda values: values | {"by_mass": values["by_mass"][:1] * 10},
    "no text": replaced("text", 7),
    "no scales": replaced("scales", None),
    "empty scales": replaced("scales", []),
    "ragged scales": replaced("scales", [[1.0] * 4, [1.0] * 3]),
    "scales of another shape": replaced("scales", [[1.0] * 3] * 2),
    "deep scales": replaced("scales", [[[1.0] * 4] * 2]),
    "words for scales": replaced("scales", [["a"] * 4] * 2),
    "objects for scales": replaced("scales", [[{}] * 4] * 2),
    "a scale of zero": in_array("scales", 0.0),
    "a negative scale": in_array("scales", -1.0),
    "an infinite scale": in_array("scales", float("inf")),
    "a scale that is no number": in_array("scales", float("nan")),
    "a huge scale": in_array("scales", 10**400),
    "a share above one": in_array("beyond_window", 1.5),
    "a negative share": in_array("read", [-0.1] * len(MASSES)),
    "a share that is no number": in_array("read", [float("nan")] * len(MASSES)),
    "a KL in words": in_figures("mean_kl", "0.1"),
    "a KL that is no number": in_figures("mean_kl", float("nan")),
    "an infinite KL": in_figures("p99_kl", float("inf")),
    "a negative KL": in_figures("mean_kl", -0.1),
    "a KL that is true": in_figures("mean_kl", True),
    "a huge KL": in_figures("mean_kl", 10**400),
    "half a position": in_figures("positions", 0.5),
    "a figure too many": in_figures("more", 1),
    "a text that is a number": in_figures("text", 1),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_parts_are_told_and_none_is_used(full: PartFiles, name: str) -> None:
    path = full.folder / "learning-0.json"
    path.write_text(json.dumps(DAMAGE[name](json.loads(path.read_text()))))
    kept, note = full.load()
    assert kept.num_texts == 0
    assert note is not None
    assert "starting anew" in note
    assert len(note) < 400


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"\xff\xfe", b"{", b"[" * 100_000, b'{"format": 1e999}', b"9" * 5000],
    ids=["empty", "null", "no UTF-8", "cut", "deep", "infinite", "long"],
)
def test_files_that_are_no_json_are_told_and_none_is_used(full: PartFiles, data: bytes) -> None:
    (full.folder / "held-out-0.json").write_bytes(data)
    kept, note = full.load()
    assert (kept.num_texts, "starting anew" in str(note)) == (0, True)


def test_a_folder_in_place_of_a_file_is_told(full: PartFiles) -> None:
    path = full.folder / "learning-1.json"
    path.unlink()
    path.mkdir()
    kept, note = full.load()
    assert (kept.num_texts, "starting anew" in str(note)) == (0, True)


@pytest.mark.parametrize(
    "change",
    [
        {"times": None},
        {"times": {}},
        {"times": [1]},
        {"times": dataclasses.asdict(TIMES) | {"exact_seconds": float("nan")}},
        {"times": dataclasses.asdict(TIMES) | {"depth_tokens": -1}},
        {"by_mass": []},
        {"by_mass": [dataclasses.asdict(NEAR[0])] * 3},
    ],
    ids=str,
)
def test_damaged_times_and_figures_of_the_last_text_are_told(
    full: PartFiles, change: dict[str, object]
) -> None:
    path = full.folder / "held-out-1.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    kept, note = full.load()
    assert (kept.num_texts, "starting anew" in str(note)) == (0, True)


def test_only_the_last_text_has_times(full: PartFiles) -> None:
    path = full.folder / "held-out-0.json"
    values = json.loads(path.read_text()) | {"times": dataclasses.asdict(TIMES)}
    path.write_text(json.dumps(values))
    assert full.load()[0].num_texts == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    name=st.sampled_from(["format", "key", "text", "scales", "read", "by_mass"]), value=json_values
)
def test_any_other_value_is_refused_or_as_good(tmp_path_factory, name: str, value: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELLM_CACHE", str(tmp_path_factory.getbasetemp() / "any"))
        parts = PartFiles(FINGERPRINT, PLAN, SHAPE, TEXTS)
        parts.keep_learning(0, findings())
        path = parts.folder / "learning-0.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
        kept, note = parts.load()
    assert (kept.num_texts == 0) == (note is not None)
    if kept.num_texts:
        assert name == "text"
        assert isinstance(value, str)


def test_what_cannot_be_written_is_told_with_what_to_do(parts: PartFiles, tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("a file in place of the folder")
    for write in (parts.require_writable, lambda: parts.keep_learning(0, findings())):
        with pytest.raises(ConfigError, match=r"cannot write to .*ELLM_CACHE"):
            write()


def test_what_can_be_written_leaves_nothing_behind(parts: PartFiles) -> None:
    parts.require_writable()
    assert list(parts.folder.iterdir()) == []
