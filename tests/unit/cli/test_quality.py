"""`ellm quality` over engines whose answers and logits are written down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from ellm import __version__
from ellm.config.attention import AttentionConfig
from ellm.errors import NativeError
from ellm.quality.tasks.registry import TASKS
from tests.support.word_tokenizer import WordTokenizer

from .conftest import Ellm
from .quality_fakes import FakeQualityBackend

ROOT = Path(__file__).parents[3]
TEXT = "\n".join(f"line {number} of a text that is long enough" for number in range(800))
TOP = {
    "version", "command", "partial", "model", "candidate_model", "reference_kv_type", "kv_type",
    "modes", "machine", "threads", "lengths_tokens", "tasks", "samples", "seed", "tail_tokens",
    "texts", "notes", "scores", "scores_by_length", "fidelity", "answers",
}  # fmt: skip


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeQualityBackend:
    backend = FakeQualityBackend()
    backend.install(monkeypatch.setattr)
    return backend


@pytest.fixture
def quick(tmp_path: Path) -> tuple[str, ...]:
    """Return options of a measurement of moments."""
    (tmp_path / "text.txt").write_text(TEXT)
    tasks = "single-needle,multi-value"
    return (
        *("quality", "m", "--text", str(tmp_path / "text.txt"), "--lengths", "1024,2048"),
        *("--tasks", tasks, "--samples", "3", "--tail", "6"),
    )


def values_of(ellm: Ellm, *arguments: str) -> dict[str, Any]:
    done = ellm(*arguments, "--json", "-")
    assert (done.status, done.err) == (0, "")
    values: dict[str, Any] = json.loads(done.out)
    return values


def test_json_holds_what_was_measured_and_what_it_depends_on(
    ellm: Ellm, fake: FakeQualityBackend, quick: tuple[str, ...]
) -> None:
    values = values_of(ellm, *quick, "--seed", "7")
    assert set(values) == TOP
    assert values["version"] == __version__
    assert values["command"] == ["ellm", *quick, "--seed", "7", "--json", "-"]
    assert (values["partial"], values["notes"]) == (False, [])
    assert (values["model"], values["candidate_model"]) == ("m.gguf", "m.gguf")
    assert (values["reference_kv_type"], values["kv_type"]) == ("int8", "int8")
    assert list(values["modes"]) == ["bounded", "sparse"]
    assert values["modes"]["sparse"] == {"mode": "sparse", "mass": 0.95, "tokens": None}
    assert (values["samples"], values["seed"], values["tail_tokens"]) == (3, 7, 6)
    assert len(values["answers"]) == 3 * 2 * 2 * 3
    ((model, config),) = fake.loaded
    assert (model, config.context_tokens, config.kv_type) == ("m", 2048 + 60, "int8")


@pytest.mark.usefixtures("fake")
def test_json_rows_agree_with_the_answers(ellm: Ellm, quick: tuple[str, ...]) -> None:
    values = values_of(ellm, *quick)
    rows = {(row["task"], row["mode"]): row for row in values["scores"]}
    tasks = ("single-needle", "multi-value", "all tasks")
    assert list(rows) == [(task, arm) for task in tasks for arm in ("bounded", "sparse")]
    for (task, arm), row in rows.items():
        found = [
            answer["score"]
            for answer in values["answers"]
            if answer["mode"] == arm and task in (answer["task"], "all tasks")
        ]
        assert row["n"] == len(found)
        assert row["score"] == pytest.approx(sum(found) / len(found))
        assert row["reference"] == 1.0
        assert row["difference"] == pytest.approx(row["score"] - 1.0)
        low, high = row["interval"]
        assert low <= row["difference"] <= high
        assert row["worse"] == sum(score < 1 for score in found)
        assert row["blocks_read_share"] == pytest.approx(0.3)
    assert 0 < rows["all tasks", "sparse"]["score"] < 1
    lengths = [row["length_tokens"] for row in values["scores_by_length"]]
    assert lengths == [1024, 1024, 2048, 2048]
    fidelity = {
        (row["text"], row["length_tokens"], row["part"]): row
        for row in values["fidelity"]
        if row["mode"] == "sparse"
    }
    assert {part for _, _, part in fidelity} <= {"all", "value digits"}
    assert {length for text, length, _ in fidelity if text == "needles"} == {1024, 2048}
    whole = fidelity["all texts", None, "all"]
    assert whole["n"] == 4 * 6
    # Logits of all even tokens, with noise of 0.1.
    assert whole["mean_kl"] == pytest.approx(0.1**2 / 2, rel=0.05)


@pytest.mark.usefixtures("fake")
def test_the_tables_show_the_figures_and_stderr_the_rest(
    ellm: Ellm, quick: tuple[str, ...], tmp_path: Path
) -> None:
    done = ellm(*quick, "--sparse-mass", "0.9", "--json", str(tmp_path / "q.json"))
    assert done.status == 0
    assert done.err == (
        "measuring 12 items of 2 tasks and predictions over 4 texts at 1,024, 2,048 tokens\n"
    )
    values = json.loads((tmp_path / "q.json").read_text())
    lines = done.out.splitlines()
    assert lines[0] == "reference  m.gguf, int8 KV, exact attention"
    assert lines[1] == (
        "candidates m.gguf, int8 KV, attention bounded (mass 0.9), sparse (mass 0.9)"
    )
    assert lines[2].startswith("prompts    1,024, 2,048 tokens; 3 samples of each of 2 tasks, seed")
    assert "partial" not in done.out
    (sparse,) = [line for line in lines if line.split()[:2] == ["single-needle", "sparse"]]
    row = values["scores"][1]
    low, high = row["interval"]
    difference = f"{row['difference'] * 100:+.1f} ({low * 100:+.1f}..{high * 100:+.1f})"
    assert difference in sparse
    assert f" 100.0  {row['score'] * 100:.1f}  " in sparse.replace("   ", "  ")
    assert sparse.endswith("30%")
    assert [line for line in lines if line.strip().startswith("all tasks")]
    assert "All tasks by length" in lines
    (whole,) = [line for line in lines if line.split()[:4] == ["all", "texts", "all", "sparse"]]
    assert f"{values['fidelity'][-1]['mean_kl']:.2e}" in whole


@pytest.mark.usefixtures("fake")
def test_a_picture_shows_each_mode_as_svg_or_html(
    ellm: Ellm, quick: tuple[str, ...], tmp_path: Path
) -> None:
    for name in ("p.svg", "p.HTML"):
        assert ellm(*quick, "--quiet", "--picture", str(tmp_path / name)).status == 0
    text = (tmp_path / "p.svg").read_text()
    ET.fromstring(text)
    for word in ("reference", "bounded", "sparse", "1,024", "2,048", "m.gguf, int8 KV"):
        assert f">{word}<" in text
    page = (tmp_path / "p.HTML").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert text.strip() in page


@pytest.mark.usefixtures("fake")
def test_default_texts_are_prose_and_code(ellm: Ellm) -> None:
    arguments = ("--lengths", "1024", "--tasks", "hex-copy", "--samples", "1", "--tail", "2")
    values = values_of(ellm, "quality", *arguments, "--attention", "bounded")
    assert values["model"] == "default.gguf"
    assert values["texts"][-1] == "code"
    assert {row["text"] for row in values["fidelity"]} == {*values["texts"], "needles", "all texts"}


def test_all_tasks_are_answered_by_default(
    ellm: Ellm, fake: FakeQualityBackend, quick: tuple[str, ...]
) -> None:
    options = ("--lengths", "1024", "--samples", "1", "--no-fidelity")
    values = values_of(ellm, "quality", *quick[2:4], *options)
    assert values["tasks"] == list(TASKS)
    assert (values["fidelity"], values["tail_tokens"]) == ([], None)
    assert {call for call in fake.engines[0].calls if call.startswith("tail")} == set()


@pytest.mark.usefixtures("fake")
def test_predictions_alone_can_be_compared(ellm: Ellm, quick: tuple[str, ...]) -> None:
    options = ("--lengths", "1024", "--tail", "3", "--no-tasks", "--attention", "block-mean,sparse")
    values = values_of(ellm, "quality", *quick[2:4], *options, "--sparse-topk", "640")
    assert values["scores"] == values["answers"] == values["tasks"] == []
    assert [row["n"] for row in values["fidelity"][:2]] == [3, 3]
    assert values["modes"]["block-mean"]["tokens"] == 640
    assert list(values["modes"]) == ["block-mean", "sparse"]


def test_default_lengths_are_those_that_the_context_has_room_for(
    ellm: Ellm, fake: FakeQualityBackend
) -> None:
    fake.context_length = 8192
    options = ("--tasks", "hex-copy", "--samples", "1", "--tail", "2")
    assert values_of(ellm, "quality", *options)["lengths_tokens"] == [4096]


@pytest.mark.usefixtures("fake")
def test_settings_of_modes_go_where_they_have_an_effect(ellm: Ellm, quick: tuple[str, ...]) -> None:
    options = ("--attention", "exact,bounded,sparse", "--sparse-mass", "0.8", "--sparse-topk", "99")
    modes = values_of(ellm, *quick, *options)["modes"]
    assert modes["exact"] == {"mode": "exact", "mass": AttentionConfig().mass, "tokens": None}
    assert modes["bounded"] == {"mode": "bounded", "mass": 0.8, "tokens": None}
    assert modes["sparse"] == {"mode": "sparse", "mass": 0.8, "tokens": 99}


def test_another_kv_type_is_loaded_after_the_reference_s(
    ellm: Ellm, fake: FakeQualityBackend, quick: tuple[str, ...]
) -> None:
    fake.noises = (0.0, 0.2)
    values = values_of(ellm, *quick, "--reference-kv-type", "f32", "-t", "1")
    assert [(name, config.kv_type) for name, config in fake.loaded] == [("m", "f32"), ("m", "int8")]
    assert [config.threads for _, config in fake.loaded] == [1, 1]
    assert (values["reference_kv_type"], values["kv_type"]) == ("f32", "int8")
    assert list(values["modes"]) == ["exact"]
    assert values["fidelity"][-1]["mean_kl"] == pytest.approx(0.2**2 / 2, rel=0.1)
    assert values["scores"][-1]["difference"] == 0.0
    assert values["scores"][-1]["blocks_read_share"] is None


def test_another_quantization_is_compared_in_any_mode(
    ellm: Ellm, fake: FakeQualityBackend, quick: tuple[str, ...]
) -> None:
    values = values_of(ellm, *quick, "--candidate-model", "other", "--attention", "exact,sparse")
    assert fake.references == ["m", "other"]
    assert [name for name, _ in fake.loaded] == ["m", "other"]
    assert (values["model"], values["candidate_model"]) == ("m.gguf", "other.gguf")
    assert [row["difference"] < 0 for row in values["scores"][-2:]] == [False, True]


def test_models_of_other_tokens_are_refused_before_loading(
    ellm: Ellm, fake: FakeQualityBackend, quick: tuple[str, ...]
) -> None:
    fake.tokenizers["other"] = WordTokenizer()
    fake.tokenizers["other"].encode("numbered first")
    done = ellm(*quick, "--candidate-model", "other")
    assert (done.status, done.out, fake.loaded) == (1, "", [])
    assert "only models of the same vocabulary can be compared" in done.err


@pytest.mark.usefixtures("fake")
def test_a_text_that_is_too_short_is_told_and_left_out(
    ellm: Ellm, quick: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text(TEXT[:4000])
    done = ellm(*quick, "--quiet", "--json", str(tmp_path / "q.json"))
    assert done.status == 0
    assert "text.txt has" in done.err
    assert "2,048 and a tail of 6 need more: left out" in done.err
    values = json.loads((tmp_path / "q.json").read_text())
    assert len(values["notes"]) == 1
    assert f"note       {values['notes'][0]}" in done.out.splitlines()


def test_lengths_over_the_context_are_refused_before_loading(
    ellm: Ellm, fake: FakeQualityBackend
) -> None:
    done = ellm("quality", "--lengths", "1024,32577")
    assert (done.status, done.out, fake.loaded) == (2, "", [])
    assert done.err == (
        "ellm: --lengths 32,577 and the 192 tokens after a prompt are more than this model's "
        "context of 32,768 tokens; the greatest that fits is 32,576\n"
    )


def test_a_length_too_short_for_a_task_is_refused_before_loading(
    ellm: Ellm, fake: FakeQualityBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ellm.quality.tasks.common_words._SHORT_REPEATS", 50)
    done = ellm("quality", "--lengths", "1024", "--tasks", "common-words")
    assert (done.status, done.out, fake.loaded) == (2, "", [])
    assert "common-words needs" in done.err


def test_predictions_that_do_not_fit_in_memory_are_refused_before_loading(
    ellm: Ellm, fake: FakeQualityBackend, monkeypatch: pytest.MonkeyPatch, quick: tuple[str, ...]
) -> None:
    monkeypatch.setattr("ellm.hardware.memory.available_memory_bytes", lambda: 2_000_000)
    done = ellm(*quick)
    assert (done.status, done.out, fake.loaded) == (5, "", [])
    assert (
        "the reference's predictions take 1.2 MB, 1 MB are available beside the model" in done.err
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lengths", "1023"), "'1023' is not a whole number from 1024 to"),
        (("--lengths", "4k"), "'4k' is not a whole number"),
        (("--tasks", "singel-needle"), "'singel-needle' is no task; did you mean single-needle"),
        (("--tasks", "nonsense"), "'nonsense' is no task; known are all, single-needle"),
        (("--tasks", ""), "'' is no task"),
        (("--attention", "sprase"), "'sprase' is no attention mode; did you mean sparse?"),
        (("--samples", "0"), "0 is out of range, allowed is 1 to 10000"),
        (("--tail", "5000"), "5000 is out of range, allowed is 1 to 4096"),
        (("--seed", "-1"), "-1 is out of range"),
        (("--sparse-mass", "0"), "allowed is above 0 to 1"),
        (("--sparse-topk", "63"), "allowed is 64 to"),
        (("--kv-type", "q8"), "int8 or f16"),
        (("--reference-kv-type", "q8"), "int8 or f16"),
        (("--no-tasks", "--no-fidelity"), "leave nothing to measure"),
        (("--no-tasks", "--tasks", "all"), "--tasks has no effect with --no-tasks"),
        (("--no-tasks", "--samples", "3"), "--samples has no effect with --no-tasks"),
        (("--no-tasks", "--picture", "p.svg"), "--picture has no effect with --no-tasks"),
        (("--no-fidelity", "--tail", "64"), "--tail has no effect with --no-fidelity"),
        (("--sparse-mass", "0.9", "--attention", "exact"), "no effect on exact attention"),
        (("--sparse-topk", "99", "--attention", "bounded"), "no effect on bounded attention"),
        (("--sparse-mass", "0.9", "--reference-kv-type", "f32"), "no effect on exact attention"),
        (("--kv-type", "f16"), "kv_type is 'f16'; allowed is 'int8' with attention 'bounded'"),
        (("--picture", "p.png"), "'p.png' does not end with .svg or .html"),
        (("--picture", "p.svg", "--tasks", "common-words"), "none of the tasks common-words has"),
        (("--picture", "p.svg", "--json", "p.svg"), "--picture and --json are both p.svg"),
        (("--picture", "absent/p.svg"), "cannot write absent/p.svg: No such file or directory;"),
        (("--json", "absent/q.json"), "cannot write absent/q.json: No such file or directory"),
        (("--text", "absent.txt"), "the text absent.txt cannot be read: No such file"),
    ],
)
def test_what_cannot_work_is_refused_before_a_model_is_looked_for(
    ellm: Ellm, fake: FakeQualityBackend, arguments: tuple[str, ...], message: str
) -> None:
    done = ellm("quality", *arguments)
    assert (done.status, done.out) == (2, "")
    assert message in " ".join(done.err.split())
    assert fake.references == []


def test_a_failed_measurement_shows_what_there_is_as_partial(
    ellm: Ellm, fake: FakeQualityBackend, quick: tuple[str, ...], tmp_path: Path
) -> None:
    left = [4]

    def fail(call: str) -> None:
        left[0] -= call == "answer sparse"
        if not left[0]:
            raise NativeError("the step failed")

    fake.on_call = fail
    done = ellm(*quick, "--quiet", "--json", str(tmp_path / "q.json"))
    assert done.status == 1
    assert done.err.endswith("ellm: the step failed\n")
    assert "figures are partial" in done.err
    assert "figures are partial" in done.out
    values = json.loads((tmp_path / "q.json").read_text())
    assert values["partial"] is True
    by_mode = {row["mode"]: row["n"] for row in values["scores"] if row["task"] == "all tasks"}
    assert by_mode == {"bounded": 4, "sparse": 3}


def test_a_measurement_that_fails_at_once_leaves_no_file(
    ellm: Ellm, fake: FakeQualityBackend, quick: tuple[str, ...], tmp_path: Path
) -> None:
    def fail(_call: str) -> None:
        raise NativeError("the step failed")

    fake.on_call = fail
    done = ellm(*quick, "--quiet", "--json", str(tmp_path / "q.json"))
    assert (done.status, done.out, done.err) == (1, "", "ellm: the step failed\n")
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_ctrl_c_ends_with_130_and_shows_what_there_is(
    quick: tuple[str, ...], tmp_path: Path
) -> None:
    path = os.pathsep.join([str(ROOT), *(part for part in sys.path if part)])
    command = [sys.executable, "-m", "tests.unit.cli.quality_driver", "0.02", *quick]
    process = subprocess.Popen(
        [*command, "--samples", "1000", "--json", str(tmp_path / "q.json")],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("measuring 4,000 items of 2 tasks")
        time.sleep(2)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert time.monotonic() - begin < 6
    assert "Traceback" not in err
    assert err.rstrip().endswith("ellm: interrupted")
    assert "stopped before the end: these figures are partial" in out
    assert json.loads((tmp_path / "q.json").read_text())["partial"] is True
