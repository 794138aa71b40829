"""`ellm calibrate` with a tiny model: what it finds, shows, keeps, goes on from and forgets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ellm import __version__
from ellm.cli import backend
from ellm.sparse import profile as profile_module
from tests.support.tiny_gguf import tiny_gguf

from .conftest import Ellm

ROOT = Path(__file__).parents[3]
TEXT = "\n".join(f"line {n} of a text, {n * n % 97}" for n in range(400))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    path.write_bytes(tiny_gguf("llama", context_length=2048, num_layers=1, sharpness=8).build())
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("ELLM_CACHE", str(path))
    return path


@pytest.fixture
def quick(tiny: Path, tmp_path: Path) -> tuple[str, ...]:
    """Return the words of a calibration of a second."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    options = ("--text", str(text), "--length", "1087", "--tail", "8", "-t", "1")
    return "calibrate", str(tiny), *options, "--max-kl", "0.5"


def profiles(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "profiles").iterdir())


def values_of(ellm: Ellm, *arguments: str) -> dict[str, Any]:
    done = ellm(*arguments, "--json", "-")
    assert (done.status, done.err) == (0, "")
    values: dict[str, Any] = json.loads(done.out)
    return values


def test_it_finds_a_profile_and_keeps_it(ellm: Ellm, quick: tuple[str, ...], cache: Path) -> None:
    values = values_of(ellm, *quick)
    (name,) = profiles(cache)
    assert values["profile"] == str(cache / "profiles" / name)
    assert values["model"] == "tiny.gguf"
    assert f"{values['fingerprint']}.json" == name
    assert 0.8 <= values["mass"] <= 0.99
    assert (values["max_kl"], values["goal_met"]) == (0.5, True)
    heads = values["kv_heads"]
    assert heads["choosing"] == 2
    assert 0 <= heads["dense"] + heads["streaming"] <= 2
    assert [found["text"] for found in values["held_out"]] == ["needles", quick[3]]
    for found in values["held_out"]:
        assert (found["length_tokens"], found["positions"]) == (1024, 8)
        assert 0 <= found["mean_kl"] <= found["p99_kl"] < 0.5
        assert 0.5 < found["blocks_read_share"] <= 1
    run = values["run"]
    assert (run["version"], run["threads"], run["notes"]) == (__version__, 1, [])
    assert run["command"] == ["ellm", *quick, "--json", "-"]
    assert (run["length_tokens"], run["tail_tokens"], run["depth_tokens"]) == (1024, 8, 1024)
    assert min(run["shallow_seconds"], run["exact_seconds"], run["sparse_seconds"]) > 0
    kept = json.loads((cache / "profiles" / name).read_text())
    assert (kept["mass"], kept["held_out"]) == (values["mass"], values["held_out"])


def test_the_table_shows_what_the_file_has_and_stderr_the_rest(
    ellm: Ellm, quick: tuple[str, ...], tmp_path: Path
) -> None:
    done = ellm(*quick, "--json", str(tmp_path / "c.json"))
    assert done.status == 0
    assert done.err == "learning from 2 texts, checking on 2 others at 1,024 tokens\n"
    values = json.loads((tmp_path / "c.json").read_text())
    lines = done.out.splitlines()
    assert lines[0] == "model       tiny.gguf"
    assert lines[1] == f"profile     {values['profile']}"
    assert lines[2] == "goal        mean KL at most 0.5: met"
    assert lines[3] == f"reads       the blocks that hold {values['mass']:.0%} of the attention"
    heads = values["kv_heads"]
    assert lines[4] == (
        f"heads       2 KV heads: {heads['dense']} read everything, {heads['streaming']} the first "
        "block and the window alone"
    )
    assert lines[5].startswith("sparse from ")
    assert lines[6].startswith("steps       ")
    for line, found in zip(lines[-2:], values["held_out"], strict=True):
        assert line.split()[-6:] == [
            "1,024",
            "8",
            f"{found['mean_kl']:.2e}",
            f"{found['p99_kl']:.2e}",
            f"{found['same_top']:.1%}",
            f"{found['blocks_read_share']:.0%}",
        ]


def test_show_prints_what_an_earlier_run_found(ellm: Ellm, quick: tuple[str, ...]) -> None:
    ran = ellm(*quick, "-q")
    shown = ellm(*quick[:2], "--show")
    assert (shown.status, shown.err) == (0, "")
    about, _, table = shown.out.partition("\n\n")
    assert ran.out.startswith(about)
    assert ran.out.endswith(table)
    values = values_of(ellm, *quick[:2], "--show")
    assert values["run"] is None
    assert values == values_of(ellm, *quick[:2], "--show")


def test_forget_deletes_profile_and_parts(ellm: Ellm, quick: tuple[str, ...], cache: Path) -> None:
    ellm(*quick, "-q")
    (name,) = profiles(cache)
    (cache / "profiles" / name).with_suffix(".part").mkdir()
    done = ellm(*quick[:2], "--forget")
    assert (done.status, done.out) == (0, "")
    assert done.err == f"{cache / 'profiles' / name} is deleted\n"
    assert profiles(cache) == []
    again = ellm(*quick[:2], "--forget")
    assert (again.status, again.err) == (0, "tiny.gguf is not calibrated: nothing to forget\n")


def test_a_model_that_is_not_calibrated_has_nothing_to_show(
    ellm: Ellm, quick: tuple[str, ...]
) -> None:
    done = ellm(*quick[:2], "--show")
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        f"ellm: tiny.gguf is not calibrated; `ellm calibrate {quick[1]}` does that\n"
    )


def test_answers_say_that_a_model_is_not_calibrated_until_it_is(
    ellm: Ellm, quick: tuple[str, ...], tiny: Path
) -> None:
    def noted(mode: str, *options: str) -> str:
        words = ("run", "-m", str(tiny), "-p", "hello", "-n", "1", "-t", "1", "--no-stats")
        done = ellm(*words, "--attention", mode, *options)
        assert done.status == 0
        return "\n".join(line for line in done.err.splitlines() if "calibrat" in line)

    advice = f"; `ellm calibrate {tiny}` measures what this model needs"
    assert noted("exact") == noted("bounded") == noted("sparse", "-q") == ""
    assert noted("sparse") == (
        f"not calibrated: conservative defaults, 95 % of the attention{advice}"
    )
    assert noted("auto") == (
        "not calibrated: conservative defaults, sparse from 16,384 tokens, 95 % of the attention"
        f"{advice}"
    )
    assert noted("auto", "--sparse-mass", "0.9") == (
        f"not calibrated: conservative defaults, sparse from 16,384 tokens{advice}"
    )
    assert noted("sparse", "--sparse-mass", "0.9") == (
        f"not calibrated: the same for all heads{advice}"
    )
    ellm(*quick, "-q")
    assert noted("sparse") == noted("auto") == ""


@pytest.mark.parametrize(
    ("sharpness", "met"),
    [
        # So many heads read everything that nothing is missing on the held-out texts.
        (8, "met, but not on the texts that were learnt from"),
        (40, "not met"),
    ],
)
def test_a_goal_that_is_missed_is_told(
    ellm: Ellm, quick: tuple[str, ...], tmp_path: Path, sharpness: float, met: str
) -> None:
    path = tmp_path / "model.gguf"
    tiny = tiny_gguf("llama", context_length=2048, num_layers=1, sharpness=sharpness)
    path.write_bytes(tiny.build())
    words = ("calibrate", str(path), *quick[2:], "--max-kl", "1e-12", "--length", "1984", "-q")
    done = ellm(*words)
    assert done.status == 0
    assert "no share of the attention that was tried is near enough" in done.err
    assert "reads       the blocks that hold 99% of the attention" in done.out
    assert f"goal        mean KL at most 1e-12: {met}" in done.out.splitlines()
    assert values_of(ellm, *words[:2], "--show")["goal_met"] is (met != "not met")


def test_texts_that_are_too_short_are_told(
    ellm: Ellm, quick: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "half.txt").write_text(TEXT[: len(TEXT) // 6])
    more = ("--text", str(tmp_path / "short.txt"), "--text", str(tmp_path / "half.txt"))
    done = ellm(*quick, *more, "-q", "--json", str(tmp_path / "c.json"))
    assert done.status == 0
    notes = json.loads((tmp_path / "c.json").read_text())["run"]["notes"]
    assert done.err.splitlines() == [f"ellm: {note}" for note in notes]
    assert notes[0].endswith("1,024 and a tail of 8 need more: left out")
    assert notes[1].endswith("is too short to be held out in part: learnt from as a whole")
    assert f"note 2      {notes[1]}" in done.out.splitlines()


def test_texts_of_this_machine_are_the_default(ellm: Ellm, tiny: Path) -> None:
    values = values_of(ellm, "calibrate", str(tiny), "--length", "1024", "--tail", "8", "-t", "1")
    names = [found["text"] for found in values["held_out"]]
    assert names[:2] == ["needles", "code"]
    assert names[2] in ("licences", "noise")
    assert values["max_kl"] == 0.002


def test_the_length_is_cut_to_what_the_context_has_room_for(ellm: Ellm, tiny: Path) -> None:
    values = values_of(ellm, "calibrate", str(tiny), "-t", "1", "--max-kl", "1")
    assert values["run"]["length_tokens"] == 2048 - 64
    done = ellm("calibrate", str(tiny), "--length", "2048")
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "ellm: --length 2,048 and a tail of 64 tokens are more than this model's context of 2,048 "
        "tokens; the greatest that fits is 1,984\n"
    )


def test_a_model_of_a_short_context_is_refused(ellm: Ellm, tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(tiny_gguf("llama", context_length=1087, num_layers=1).build())
    done = ellm("calibrate", str(path))
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "ellm: this model's context of 1,087 tokens is too short to calibrate: 1,024 and a tail of "
        "64 are needed\n"
    )


def test_a_model_whose_layers_all_slide_is_refused(ellm: Ellm, tmp_path: Path) -> None:
    path = tmp_path / "sliding.gguf"
    path.write_bytes(tiny_gguf("gemma3", context_length=2048, num_layers=3).build())
    done = ellm("calibrate", str(path))
    assert (done.status, done.out) == (1, "")
    assert "every layer of this model has a sliding window" in done.err


def test_predictions_that_do_not_fit_in_memory_are_refused(
    ellm: Ellm, quick: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ellm.hardware.memory.available_memory_bytes", lambda: 10_000)
    done = ellm(*quick)
    assert (done.status, done.out) == (5, "")
    assert "available beside the model; give a shorter --tail" in done.err


def test_a_cache_that_cannot_be_written_is_refused_before_anything_runs(
    ellm: Ellm, quick: tuple[str, ...], cache: Path
) -> None:
    cache.write_text("a file in place of the folder")
    done = ellm(*quick)
    assert (done.status, done.out) == (2, "")
    assert "cannot write to" in done.err
    assert "ELLM_CACHE names another cache" in done.err


def test_a_profile_that_cannot_be_written_loses_nothing(
    ellm: Ellm, quick: tuple[str, ...], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_profile: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(profile_module, "save_profile", full)
        done = ellm(*quick)
    assert (done.status, done.out) == (2, "")
    assert "No space left on device" in done.err
    again = ellm(*quick)
    assert again.status == 0
    assert "; 4 of 4 are finished, going on from there" in again.err
    assert len(profiles(cache)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--length", "1023"), "1023 is out of range, allowed is 1024 to 131072"),
        (("--length", "4k"), "Invalid value for '--length'"),
        (("--tail", "7"), "7 is out of range, allowed is 8 to 512"),
        (("--tail", "513"), "513 is out of range"),
        (("--max-kl", "0"), "allowed is above 0 to 10"),
        (("--max-kl", "nan"), "nan is out of range"),
        (("-t", "0"), "0 is out of range"),
        (("--show", "--forget"), "--show and --forget"),
        (("--show", "--max-kl", "0.1"), "--max-kl has no effect with --show"),
        (("--show", "--fresh"), "--fresh has no effect with --show"),
        (("--show", "--text", "t.txt"), "--text has no effect with --show"),
        (("--forget", "--length", "2048"), "--length has no effect with --forget"),
        (("--forget", "--json", "-"), "--json has no effect with --forget"),
        (("--json", "absent/c.json"), "cannot write absent/c.json: No such file or directory"),
        (("--attention", "sparse"), "No such option: --attention"),
    ],
)
def test_what_cannot_work_is_refused_before_a_model_is_looked_for(
    ellm: Ellm, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    looked_for: list[object] = []
    monkeypatch.setattr(backend, "find_model", lambda *asked: looked_for.append(asked))
    done = ellm("calibrate", *arguments)
    assert (done.status, done.out, looked_for) == (2, "", [])
    assert message in " ".join(done.err.split())


def test_a_text_that_cannot_be_read_is_refused(ellm: Ellm, tiny: Path) -> None:
    done = ellm("calibrate", str(tiny), "--text", "absent.txt")
    assert (done.status, done.out) == (2, "")
    assert "the text absent.txt cannot be read: No such file" in done.err


def start(quick: tuple[str, ...], *options: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), *(part for part in sys.path if part)])
    return subprocess.Popen(
        [sys.executable, "-m", "tests.unit.cli.calibrate_driver", "0.02", *quick, *options],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stop_after_a_text(process: subprocess.Popen[str], cache: Path) -> str:
    """Send Ctrl-C when a text is finished; return what the process printed."""
    with process:
        until = time.monotonic() + 60
        while not list(cache.glob("profiles/*.part/*.json")):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert time.monotonic() - begin < 6
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    return err


def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(
    ellm: Ellm, quick: tuple[str, ...], cache: Path
) -> None:
    err = stop_after_a_text(start(quick), cache)
    assert err.splitlines()[-3:] == [
        "ellm: 1 of 4 texts are finished and kept: the same command goes on from there",
        "",
        "ellm: interrupted",
    ]
    (folder,) = profiles(cache)
    assert folder.endswith(".part")
    again = ellm(*quick)
    assert again.err.splitlines() == [
        "learning from 2 texts, checking on 2 others at 1,024 tokens; 1 of 4 are finished, going "
        "on from there"
    ]
    assert again.status == 0
    (name,) = profiles(cache)
    gone_on = json.loads((cache / "profiles" / name).read_text())
    # As if it had never been stopped, but for the times of steps.
    assert ellm(*quick, "-q").status == 0
    undisturbed = json.loads((cache / "profiles" / name).read_text())
    assert gone_on | {"sparse_from_tokens": 0} == undisturbed | {"sparse_from_tokens": 0}


def test_what_a_stopped_run_left_is_not_used_where_it_does_not_fit(
    ellm: Ellm, quick: tuple[str, ...], cache: Path
) -> None:
    stop_after_a_text(start(quick), cache)
    (part,) = cache.glob("profiles/*.part/*.json")
    kept = part.read_text()
    for options in (("--fresh",), ("--tail", "9")):
        part.parent.mkdir(exist_ok=True)
        part.write_text(kept)
        done = ellm(*quick, *options)
        assert done.status == 0
        assert "going on from there" not in done.err
        assert ("starting anew" in done.err) == (options != ("--fresh",))
        assert len(profiles(cache)) == 1
    part.parent.mkdir()
    part.write_text(kept.replace("0", "?"))
    done = ellm(*quick)
    assert (done.status, "starting anew" in done.err) == (0, True)
