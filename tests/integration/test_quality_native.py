"""`ellm quality` on the native core, with a tiny model: exact against itself differs in nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ellm.cli.main import main
from tests.support.tiny_gguf import tiny_gguf

QUICK = (
    *("--lengths", "1024", "--tasks", "single-needle,needle-haystack", "--samples", "1"),
    *("--tail", "70", "-t", "1"),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    path.write_bytes(tiny_gguf("llama", ("q8_0",), context_length=1200).build())
    return path


def values_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny: Path, *options: str
) -> dict[str, Any]:
    monkeypatch.setenv("ELLM_CACHE", str(tiny.parent / "cache"))
    status = main(["quality", str(tiny), *QUICK, *options, "--json", "-"])
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    values: dict[str, Any] = json.loads(captured.out)
    return values


def test_exact_differs_in_nothing_and_modes_in_little(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny: Path
) -> None:
    values = values_of(capsys, monkeypatch, tiny, "--attention", "exact,bounded,sparse,block-mean")
    rows = {row["mode"]: row for row in values["fidelity"] if row["text"] == "all texts"}
    exact = rows["exact"]
    assert (exact["mean_kl"], exact["max_kl"], exact["same_top"]) == (0.0, 0.0, 1.0)
    assert exact["nll_change"] == 0.0
    assert exact["n"] == 70 * 3
    assert exact["blocks_read_share"] is None
    for mode in ("bounded", "sparse", "block-mean"):
        assert 0 <= rows[mode]["mean_kl"] < 1
        assert 0 < rows[mode]["blocks_read_share"] <= 1
    answers = {(each["task"], each["mode"]): each["text"] for each in values["answers"]}
    for task in ("single-needle", "needle-haystack"):
        assert answers[task, "exact"] == answers[task, "reference"]


def test_another_kv_type_is_near_and_the_same_one_loaded_twice_is_equal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny: Path
) -> None:
    near = values_of(capsys, monkeypatch, tiny, "--reference-kv-type", "f32")["fidelity"][-1]
    assert 0 < near["mean_kl"] < 0.1
    same = values_of(capsys, monkeypatch, tiny, "--candidate-model", str(tiny))["fidelity"][-1]
    assert (same["mean_kl"], same["max_kl"], same["same_top"]) == (0.0, 0.0, 1.0)
