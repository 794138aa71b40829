"""A profile is there again as it was saved; what is no profile of the model is told, not used."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ellm.config.attention import ATTENTION_MODES, BASELINE_MODES, AttentionConfig
from ellm.program.executor import HeadFactors
from ellm.sparse import profile as profile_module
from ellm.sparse.policy import AttentionPolicy
from ellm.sparse.profile import (
    HeldOutFigures,
    SparseProfile,
    find_profile,
    parse_profile,
    profile_path,
    save_profile,
)

FINGERPRINT = "0123abcd"
SHAPE = {"num_layers": 2, "num_kv_heads": 2, "num_heads": 4}
PROFILE = SparseProfile(
    fingerprint=FINGERPRINT,
    mass=0.93,
    sparse_from_tokens=5120,
    heads=HeadFactors(
        np.array([[0.0, 1.0], [np.inf, 1.0]], np.float32),
        np.array([[1.0, 0.25, 4.0, 1 / 3]] * 2, np.float32),
    ),
    max_kl=0.002,
    held_out=(
        HeldOutFigures(
            text="prose",
            length_tokens=8192,
            positions=64,
            mean_kl=1 / 3e3,
            p99_kl=0.01,
            same_top=0.97,
            blocks_read_share=0.4,
        ),
    ),
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELLM_CACHE", str(tmp_path))


def found() -> SparseProfile | None:
    return find_profile(FINGERPRINT, **SHAPE)


def values_of(profile: SparseProfile = PROFILE) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(save_profile(profile).read_text())
    return values


def write(text: str | bytes) -> None:
    path = profile_path(FINGERPRINT)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def test_a_profile_is_there_again_as_it_was_saved() -> None:
    path = save_profile(PROFILE)
    assert path == profile_path(FINGERPRINT)
    again = found()
    assert again is not None
    np.testing.assert_array_equal(again.heads.allowances, PROFILE.heads.allowances)
    np.testing.assert_array_equal(again.heads.scales, PROFILE.heads.scales)
    for name in ("fingerprint", "mass", "sparse_from_tokens", "max_kl", "held_out"):
        assert getattr(again, name) == getattr(PROFILE, name)
    assert (again.dense_heads, again.streaming_heads) == (1, 1)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_profile_that_is_not_there_is_none_and_nothing_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert found() is None
    assert caplog.records == []


def test_a_profile_takes_the_place_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    save_profile(PROFILE)
    other = SparseProfile(
        **{name: getattr(PROFILE, name) for name in PROFILE.__slots__} | {"mass": 0.8}
    )
    path = save_profile(other)
    again = found()
    assert again is not None
    assert again.mass == 0.8
    # One that cannot be written leaves the older one.
    monkeypatch.setattr(profile_module.json, "dumps", lambda *_a, **_k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_profile(PROFILE)
    assert found() is not None
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def replaced(**changes: object) -> Callable[[dict[str, Any]], object]:
    return lambda values: values | changes


def without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda values: {key: value for key, value in values.items() if key != name}


def in_figures(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda values: values | {"held_out": [values["held_out"][0] | {name: value}]}


NAN, INFINITY = float("nan"), float("inf")
NAMES = ("format", "fingerprint", "mass", "sparse_from_tokens", "max_kl", "held_out")
REFUSED: dict[str, Callable[[dict[str, Any]], object]] = {
    "null": lambda _values: None,
    "a list": lambda values: [values],
    "a number": lambda _values: 1,
    "an empty object": lambda _values: {},
    **{f"without {name}": without(name) for name in (*NAMES, "allowances", "scales")},
    "another format": replaced(format=2),
    "another model": replaced(fingerprint="ffff"),
    "no model": replaced(fingerprint=None),
    "mass 0": replaced(mass=0),
    "mass above 1": replaced(mass=1.01),
    "mass NaN": replaced(mass=NAN),
    "mass huge": replaced(mass=10**400),
    "mass null": replaced(mass=None),
    "mass list": replaced(mass=[0.9]),
    "mass word": replaced(mass="much"),
    "sparse from -1": replaced(sparse_from_tokens=-1),
    "sparse from huge": replaced(sparse_from_tokens=2**31),
    "sparse from infinity": replaced(sparse_from_tokens=INFINITY),
    "sparse from NaN": replaced(sparse_from_tokens=NAN),
    "sparse from null": replaced(sparse_from_tokens=None),
    "max KL null": replaced(max_kl=None),
    "max KL NaN": replaced(max_kl=NAN),
    "max KL infinity": replaced(max_kl=INFINITY),
    "max KL -1": replaced(max_kl=-1),
    "no allowances": replaced(allowances=[]),
    "allowances null": replaced(allowances=None),
    "allowances number": replaced(allowances=1.0),
    "allowances of another shape": replaced(allowances=[[1.0] * 3] * 2),
    "allowances of another depth": replaced(allowances=[[[1.0]] * 2] * 2),
    "allowances of one layer": replaced(allowances=[[1.0] * 2]),
    "ragged allowances": replaced(allowances=[[1.0] * 2, [1.0]]),
    "an allowance NaN": replaced(allowances=[[1.0, NAN], [1.0, 1.0]]),
    "an allowance -1": replaced(allowances=[[1.0, -1.0], [1.0, 1.0]]),
    "an allowance too large": replaced(allowances=[[1.0, 1001.0], [1.0, 1.0]]),
    "an allowance beyond float32": replaced(allowances=[[1.0, 1e39], [1.0, 1.0]]),
    "an allowance huge": replaced(allowances=[[1.0, 10**400], [1.0, 1.0]]),
    "an allowance word": replaced(allowances=[["a", 1.0], [1.0, 1.0]]),
    "no scales": replaced(scales=[]),
    "scales of another shape": replaced(scales=[[1.0] * 4] * 3),
    "ragged scales": replaced(scales=[[1.0] * 4, [1.0] * 3]),
    "a scale 0": replaced(scales=[[0.0] * 4] * 2),
    "a scale null": replaced(scales=[[None] * 4] * 2),
    "a scale NaN": replaced(scales=[[NAN] * 4] * 2),
    "a scale too large": replaced(scales=[[1001.0] * 4] * 2),
    "a scale beyond float32": replaced(scales=[[1e39] * 4] * 2),
    "held out null": replaced(held_out=None),
    "held out of numbers": replaced(held_out=[1]),
    "held out without fields": replaced(held_out=[{}]),
    "held out with a field too many": in_figures("more", 1),
    "a KL word": in_figures("mean_kl", "small"),
    "a KL null": in_figures("mean_kl", None),
    "a KL NaN": in_figures("mean_kl", NAN),
    "a p99 list": in_figures("p99_kl", []),
    "a share word": in_figures("blocks_read_share", "half"),
    "a length word": in_figures("length_tokens", "8K"),
    "half a position": in_figures("positions", 0.5),
    "a name number": in_figures("text", 5),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_profile_of_the_model_is_told_and_not_used(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(json.dumps(REFUSED[name](values_of())))
    assert found() is None
    told(caplog)


def told(caplog: pytest.LogCaptureFixture) -> None:
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(profile_path(FINGERPRINT)) in record.getMessage()
    assert "calibrate again" in record.getMessage()
    assert len(record.getMessage()) < 600


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"\xff\xfe", b"{", b"[" * 100_000, b"9" * 5000, b'{"format": 1e999}'],
    ids=["empty", "null byte", "no UTF-8", "cut", "deep", "long number", "infinite"],
)
def test_files_that_are_no_json_are_told_and_not_used(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    write(data)
    assert found() is None
    told(caplog)


def test_a_folder_in_place_of_a_profile_is_told(caplog: pytest.LogCaptureFixture) -> None:
    profile_path(FINGERPRINT).mkdir(parents=True)
    assert found() is None
    told(caplog)


@pytest.mark.parametrize("shape", ["num_layers", "num_kv_heads", "num_heads"])
def test_a_profile_of_another_shape_is_not_used(
    shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    save_profile(PROFILE)
    assert find_profile(FINGERPRINT, **SHAPE | {shape: 8}) is None
    told(caplog)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(name=st.sampled_from((*NAMES, "allowances", "scales")), value=json_values)
def test_any_other_value_is_refused_or_in_range(name: str, value: object) -> None:
    values = json.loads(json.dumps(profile_module._values(PROFILE))) | {name: value}
    try:
        profile = parse_profile(json.dumps(values))
    except ValueError:
        return
    assert 0 < profile.mass <= 1
    assert 0 <= profile.sparse_from_tokens < 2**31
    assert (profile.heads.allowances >= 0).all()
    assert ((profile.heads.scales > 0) & (profile.heads.scales <= 1000)).all()
    assert isinstance(profile.fingerprint, str)


POSITIONS = (0, 1023, 5119, 5120, 1_000_000)


@pytest.mark.parametrize("mode", [*ATTENTION_MODES, *BASELINE_MODES])
@pytest.mark.parametrize("position", POSITIONS)
def test_sparse_and_auto_go_by_the_profile_and_no_other_mode_does(mode: str, position: int) -> None:
    config = AttentionConfig(mode=mode)
    plain = AttentionPolicy(config).rule_at(position)
    rule = AttentionPolicy(config, PROFILE).rule_at(position)
    if mode not in ("sparse", "auto"):
        assert rule == plain
    elif mode == "auto" and position < 5120:
        assert rule is None
    else:
        assert rule is not None
        assert (rule.mass, rule.heads) == (0.93, PROFILE.heads)


@pytest.mark.parametrize("mode", ["sparse", "auto"])
def test_a_mass_that_is_asked_for_comes_before_the_profile_s(mode: str) -> None:
    policy = AttentionPolicy(AttentionConfig(mode=mode, mass=0.7), PROFILE)
    rule = policy.rule_at(5120)
    assert rule is not None
    assert (policy.mass, rule.mass, rule.heads) == (0.7, 0.7, PROFILE.heads)
