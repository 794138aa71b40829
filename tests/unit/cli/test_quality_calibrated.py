"""`ellm quality` measures a calibrated model as it answers: by its profile."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ellm.config.attention import EXACT
from ellm.program.executor import HeadFactors
from ellm.sparse.policy import AttentionPolicy
from ellm.sparse.profile import SparseProfile
from tests.support.fake_replay import FakeReplayEngine

from .conftest import Ellm
from .quality_fakes import FakeQualityBackend

ONES = np.ones((1, 1), dtype=np.float32)
PROFILE = SparseProfile(
    fingerprint="f",
    mass=0.93,
    sparse_from_tokens=4096,
    heads=HeadFactors(ONES, ONES),
    max_kl=0.002,
    held_out=(),
)


@pytest.fixture(autouse=True)
def _calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeQualityBackend().install(monkeypatch.setattr)
    monkeypatch.setattr(FakeReplayEngine, "attention", AttentionPolicy(EXACT, PROFILE))


@pytest.fixture
def quick(tmp_path: Path) -> tuple[str, ...]:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"line {n} of a text that is long enough" for n in range(400)))
    return "quality", "m", "--text", str(text), "--lengths", "1024", "--no-tasks", "--tail", "4"


def test_the_table_says_that_a_mode_is_calibrated(ellm: Ellm, quick: tuple[str, ...]) -> None:
    done = ellm(*quick, "-q")
    assert done.out.splitlines()[1] == (
        "candidates m.gguf, int8 KV, attention bounded (mass 0.95), sparse (mass 0.93, calibrated)"
    )


def test_json_has_the_mass_that_was_read(ellm: Ellm, quick: tuple[str, ...]) -> None:
    done = ellm(*quick, "--attention", "exact,bounded,sparse,auto", "--json", "-")
    masses = {name: mode["mass"] for name, mode in json.loads(done.out)["modes"].items()}
    assert masses == {"exact": None, "bounded": 0.95, "sparse": 0.93, "auto": 0.93}


def test_a_mass_that_is_asked_for_comes_first(ellm: Ellm, quick: tuple[str, ...]) -> None:
    done = ellm(*quick, "--sparse-mass", "0.8", "-q")
    assert "bounded (mass 0.8), sparse (mass 0.8, calibrated)" in done.out
