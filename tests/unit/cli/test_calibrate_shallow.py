"""`ellm calibrate --shallow` with a tiny model: what it finds, shows, keeps and forgets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ellm import __version__
from ellm.cli import backend
from ellm.engine.loading import open_model
from ellm.program import exit_store
from ellm.program.exit_store import find_exit
from tests.support.tiny_gguf import tiny_gguf

from .conftest import Ellm

TEXT = "\n".join(f"line {n} of a text, {n * n % 97}" for n in range(400))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    path.write_bytes(tiny_gguf("llama", context_length=1024, num_layers=4).build())
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("ELLM_CACHE", str(path))
    return path


@pytest.fixture
def quick(tiny: Path, tmp_path: Path) -> tuple[str, ...]:
    """Return the words of a probe of a second."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    return "calibrate", str(tiny), "--shallow", "--text", str(text), "-t", "1"


def values_of(ellm: Ellm, *arguments: str) -> dict[str, Any]:
    done = ellm(*arguments, "--json", "-")
    assert (done.status, done.err) == (0, "")
    values: dict[str, Any] = json.loads(done.out)
    return values


def kept(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "profiles").iterdir())


def test_it_finds_an_exit_and_keeps_it_whether_it_pays_or_not(
    ellm: Ellm, quick: tuple[str, ...], cache: Path
) -> None:
    values = values_of(ellm, *quick)
    (name,) = kept(cache)
    assert name == f"{values['fingerprint']}.shallow.npz"
    assert values["exit"] == str(cache / "profiles" / name)
    assert values["model"] == "tiny.gguf"
    assert [depth["layer"] for depth in values["depths"]] == [1, 2, 3]
    for depth in values["depths"]:
        assert depth["acceptance"] == depth["agreed"] / depth["positions"]
        assert depth["cost_ratio"] == depth["exit_seconds"] / values["step_seconds"][0]
        assert len(depth["gains"]) == 4
    best = max(values["depths"], key=lambda depth: max(depth["gains"]))
    assert values["layer"] == best["layer"]
    assert values["pays"] is (max(best["gains"]) >= 1.05)
    assert values["verdict"].startswith("pays: " if values["pays"] else "does not pay: ")
    assert best["gains"][values["chain_length"] - 1] == max(best["gains"])
    run = values["run"]
    assert (run["version"], run["threads"]) == (__version__, 1)
    assert run["command"] == ["ellm", *quick, "--json", "-"]
    found = find_exit(values["fingerprint"], num_layers=4, hidden_size=96)
    assert found is not None
    assert (found.layer, found.pays) == (values["layer"], values["pays"])


def test_the_table_shows_what_the_file_has(
    ellm: Ellm, quick: tuple[str, ...], tmp_path: Path
) -> None:
    done = ellm(*quick, "--json", str(tmp_path / "s.json"))
    assert done.status == 0
    # Where the machine is busy, progress follows.
    assert done.err.startswith("fitting exits from shallow layers: about a minute\n")
    values = json.loads((tmp_path / "s.json").read_text())
    lines = done.out.splitlines()
    assert lines[:4] == [
        "model       tiny.gguf",
        f"exit        {values['exit']}",
        f"shallow     {values['verdict']}",
        f"learnt from {values['learnt_tokens']:,} tokens",
    ]
    assert lines[4].startswith("steps       ")
    assert "for one row at 192 tokens; of 2 to 5 rows " in lines[4]
    for line, depth in zip(lines[-3:], values["depths"], strict=True):
        needed = depth["needed_acceptance"]
        assert line.split() == [
            str(depth["layer"]),
            "of",
            "4",
            f"{depth['acceptance']:.1%}",
            f"{depth['positions']}",
            f"{depth['cost_ratio']:.2f}",
            "never" if needed is None else f"{needed:.1%}",
            *(f"{gain:.2f}" for gain in depth["gains"]),
        ]


def test_show_prints_what_an_earlier_run_found(ellm: Ellm, quick: tuple[str, ...]) -> None:
    ran = ellm(*quick, "-q")
    shown = ellm(*quick[:3], "--show")
    assert (shown.status, shown.err) == (0, "")
    about, _, table = shown.out.partition("\n\n")
    assert ran.out.startswith(about)
    assert ran.out.endswith(table)
    assert values_of(ellm, *quick[:3], "--show")["run"] is None


def test_forget_deletes_the_exit_and_nothing_else(
    ellm: Ellm, quick: tuple[str, ...], cache: Path
) -> None:
    ellm(*quick, "-q")
    (name,) = kept(cache)
    (cache / "profiles" / "other.json").write_text("{}")
    done = ellm(*quick[:3], "--forget")
    assert (done.status, done.out) == (0, "")
    assert done.err == f"{cache / 'profiles' / name} is deleted\n"
    assert kept(cache) == ["other.json"]
    again = ellm(*quick[:3], "--forget")
    assert (again.status, again.err) == (0, "tiny.gguf has no exit: nothing to forget\n")


def test_a_model_without_an_exit_has_nothing_to_show(ellm: Ellm, quick: tuple[str, ...]) -> None:
    done = ellm(*quick[:3], "--show")
    assert (done.status, done.out) == (1, "")
    command = f"ellm calibrate {quick[1]} --shallow"
    assert done.err == f"ellm: tiny.gguf has no exit; `{command}` fits one\n"


def test_a_damaged_exit_is_told_and_made_again(
    ellm: Ellm,
    quick: tuple[str, ...],
    cache: Path,
    tiny: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = exit_store.exit_path(open_model(str(tiny)).file.fingerprint)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    assert ellm(*quick[:3], "--show").status == 1
    assert f"the exit {path} is not used (it is no archive)" in caplog.text
    assert ellm(*quick, "-q").status == 0
    assert ellm(*quick[:3], "--show").status == 0
    assert kept(cache) == [path.name]


def test_models_that_cannot_have_an_exit_are_refused(ellm: Ellm, tmp_path: Path) -> None:
    one_layer, short = tmp_path / "one.gguf", tmp_path / "short.gguf"
    one_layer.write_bytes(tiny_gguf("llama", context_length=1024, num_layers=1).build())
    short.write_bytes(tiny_gguf("llama", context_length=500, num_layers=2).build())
    done = ellm("calibrate", str(one_layer), "--shallow", "-q")
    assert (done.status, done.out) == (4, "")
    assert "a model of one layer has no shallow layers to leave after" in done.err
    done = ellm("calibrate", str(short), "--shallow", "-q")
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "ellm: this model's context of 500 tokens is too short to fit an exit: 512 are needed\n"
    )


def test_what_fitting_takes_must_fit_in_memory(
    ellm: Ellm, quick: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ellm.hardware.memory.available_memory_bytes", lambda: 10_000)
    done = ellm(*quick)
    assert (done.status, done.out) == (5, "")
    assert "fitting exits takes" in done.err


def test_an_exit_that_cannot_be_written_is_told(
    ellm: Ellm, quick: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_exit: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exit_store, "save_exit", full)
    done = ellm(*quick)
    assert (done.status, done.out) == (2, "")
    assert "No space left on device" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--max-kl", "0.1"), "--max-kl has no effect with --shallow"),
        (("--length", "2048"), "--length has no effect with --shallow"),
        (("--tail", "64"), "--tail has no effect with --shallow"),
        (("--fresh",), "--fresh has no effect with --shallow"),
        (("--show", "--text", "t.txt"), "--text has no effect with --show"),
        (("--show", "--forget"), "--show and --forget"),
    ],
)
def test_options_of_the_other_calibration_are_refused(
    ellm: Ellm, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    looked_for: list[object] = []
    monkeypatch.setattr(backend, "find_model", lambda *asked: looked_for.append(asked))
    done = ellm("calibrate", "--shallow", *arguments)
    assert (done.status, done.out, looked_for) == (2, "", [])
    assert message in " ".join(done.err.split())
