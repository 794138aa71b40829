"""`ellm bench` with a tiny model on the native core; only the bandwidth is made up."""

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
from ellm.config.engine import KV_TYPES
from ellm.engine.benchmark import Benchmark
from ellm.engine.opening import open_model
from ellm.errors import NativeError
from ellm.hardware.machine import cpu_name
from tests.support.tiny_gguf import tiny_gguf

from .conftest import Ellm
from .fakes import FakeBackend

CONTEXT_TOKENS = 1200
QUICK = ("--depths", "70,130", "--decode", "3", "--rows", "1,2,8", "-t", "1")
TOP = {
    "version", "command", "model", "text", "machine", "isa", "threads", "kv_type", "attention",
    "rows_per_chunk", "n", "n_by_rows", "read_bandwidth_gb_per_s", "decode_tokens_per_second",
    "weights_bytes", "kv_bytes", "arena_bytes", "peak_rss_bytes", "rows",
}  # fmt: skip
ROW = {
    "depth_tokens", "prefill_tokens_per_second", "decode_tokens_per_second", "decode_ms_per_token",
    "decode_ms_range", "bytes_per_token", "kv_blocks_read_share", "skipped_mass",
    "gb_per_s", "mem_bandwidth_util", "step_ms_by_rows", "step_ms_range_by_rows", "peak_rss_bytes",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny = tiny_gguf("llama", ("q8_0",), context_length=CONTEXT_TOKENS)
    (folder / "tiny.gguf").write_bytes(tiny.build())
    long = tiny_gguf("llama", ("q8_0",), context_length=1 << 17)
    (folder / "long.gguf").write_bytes(long.build())
    return folder


@pytest.fixture
def tiny(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ELLM_CACHE", str(folder / "cache"))
    monkeypatch.setattr("ellm.hardware.bandwidth.read_bandwidth_gb_per_s", lambda _threads: 10.0)
    return str(folder / "tiny.gguf")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return what will hold the tokens of every benchmark."""
    read: list[list[int]] = []
    init = Benchmark.__init__

    def recorded(self: Benchmark, executor: Any, tokens: Any, *args: Any, **named: Any) -> None:
        read.append(tokens.tolist())
        init(self, executor, tokens, *args, **named)

    monkeypatch.setattr(Benchmark, "__init__", recorded)
    return read


def values_of(ellm: Ellm, *arguments: str) -> dict[str, Any]:
    done = ellm("bench", *arguments, "--json", "-")
    assert (done.status, done.err) == (0, "")
    values: dict[str, Any] = json.loads(done.out)
    return values


def test_json_holds_what_was_measured_and_what_it_depends_on(ellm: Ellm, tiny: str) -> None:
    values = values_of(ellm, "-m", tiny, *QUICK, "-b", "64")
    assert set(values) == TOP
    assert values["version"] == __version__
    assert values["command"] == ["ellm", "bench", "-m", tiny, *QUICK, "-b", "64", "--json", "-"]
    assert (values["model"], values["text"]) == ("tiny.gguf", None)
    assert (values["threads"], values["kv_type"], values["attention"]) == (1, "int8", "exact")
    assert (values["rows_per_chunk"], values["n"], values["n_by_rows"]) == (64, 3, 7)
    machine = values["machine"]
    assert (machine["cpu"], machine["isa"]) == (cpu_name(), values["isa"])
    assert machine["usable_cpus"] >= 1
    assert machine["available_memory_bytes"] > 0
    assert min(values[f"{kind}_bytes"] for kind in ("weights", "kv", "arena", "peak_rss")) > 0


def test_json_rows_agree_with_themselves(ellm: Ellm, tiny: str) -> None:
    values = values_of(ellm, "-m", tiny, *QUICK)
    rows = values["rows"]
    assert [row["depth_tokens"] for row in rows] == [70, 130]
    assert values["decode_tokens_per_second"] == rows[0]["decode_tokens_per_second"]
    for row in rows:
        assert set(row) == ROW
        assert row["prefill_tokens_per_second"] > 0
        least, most = row["decode_ms_range"]
        assert 0 < least <= row["decode_ms_per_token"] <= most
        rate = row["decode_tokens_per_second"]
        assert rate == pytest.approx(1000 / row["decode_ms_per_token"])
        assert row["gb_per_s"] == pytest.approx(row["bytes_per_token"] * rate / 1e9)
        assert row["mem_bandwidth_util"] == pytest.approx(row["gb_per_s"] / 10.0)
        assert list(row["step_ms_by_rows"]) == ["1", "2", "8"]
        for count, median in row["step_ms_by_rows"].items():
            least, most = row["step_ms_range_by_rows"][count]
            assert 0 < least <= median <= most
    # KV of 60 more tokens: 3 layers, 2 heads; keys and values of 16 bytes, the scale of the values,
    # and a token's share of its block's means and scales of keys, in whole lines.
    head_bytes = 2 * 16 + 4 + 192 // 64
    assert rows[1]["bytes_per_token"] - rows[0]["bytes_per_token"] == 60 * 3 * 2 * head_bytes


def test_table_shows_the_figures_with_their_units_and_stderr_the_rest(
    ellm: Ellm, tiny: str, tmp_path: Path
) -> None:
    done = ellm("bench", "-m", tiny, *QUICK, "--json", str(tmp_path / "b.json"))
    assert done.status == 0
    assert done.err == "reading 130 random tokens, measuring at 70, 130\n"
    values = json.loads((tmp_path / "b.json").read_text())
    lines = done.out.splitlines()
    assert lines[0] == "model    tiny.gguf, int8 KV, exact attention"
    assert lines[1] == "text     random tokens"
    assert cpu_name() in lines[2]
    assert f"eLLM {__version__}, {values['isa']}, 1 thread, which read 10.0 GB/s" in lines[3]
    assert lines[4].startswith("memory   weights ")
    assert f"ellm bench -m {tiny} --depths 70,130" in lines[5]
    assert "n = 3 steps" in lines[7]
    first = values["rows"][0]
    decode = f"{first['decode_ms_per_token']:.2f} ({first['decode_ms_range'][0]:.2f}.."
    assert lines[9].split()[0] == "70"
    assert lines[9].count(" tok/s ") == 2
    assert decode in lines[9]
    assert f"{first['gb_per_s']:.1f} GB/s" in lines[9]
    assert f" {first['mem_bandwidth_util']:.0%} " in lines[9]
    assert lines[10].split()[0] == "130"
    assert "n = 7" in lines[12]
    assert lines[13].split() == ["rows", "at", "depth", "70", "at", "depth", "130"]
    assert [line.split()[0] for line in lines[14:]] == ["1", "2", "8"]
    assert f"{first['step_ms_by_rows']['8']:.2f} (" in lines[16]


def test_a_text_is_read_as_a_prompt_would_be(
    ellm: Ellm, tiny: str, tmp_path: Path, read: list[list[int]]
) -> None:
    text = tmp_path / "a text.txt"
    text.write_text("hello and the thing " * 100, encoding="utf-8")
    values = values_of(ellm, "-m", tiny, "--text", str(text), *QUICK)
    assert values["text"] == str(text)
    assert read == [open_model(tiny).tokenizer.encode("hello and the thing " * 100)[:130]]


def test_random_tokens_are_the_same_every_time_and_none_is_special(
    ellm: Ellm, tiny: str, read: list[list[int]]
) -> None:
    for _ in range(2):
        values_of(ellm, "-m", tiny, "--depths", "1000", *QUICK[2:])
    assert read[0] == read[1]
    assert min(read[0]) >= 3
    assert len(set(read[0])) > 200


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_kv_types_are_measured_under_their_name(ellm: Ellm, tiny: str, kv_type: str) -> None:
    values = values_of(ellm, "-m", tiny, *QUICK, "--kv-type", kv_type, "--no-mmap")
    assert values["kv_type"] == kv_type


def test_depths_are_sorted_each_once_and_may_be_given_in_parts(ellm: Ellm, tiny: str) -> None:
    parts = ("--depths", "130 70", "--depths", "70, 1", "--rows", "8", "--rows", "1,8")
    values = values_of(ellm, "-m", tiny, *parts, "--decode", "1")
    assert [row["depth_tokens"] for row in values["rows"]] == [1, 70, 130]
    assert list(values["rows"][0]["step_ms_by_rows"]) == ["1", "8"]


def test_default_depths_are_those_that_the_context_has_room_for(ellm: Ellm, tiny: str) -> None:
    values = values_of(ellm, "-m", tiny)
    assert [row["depth_tokens"] for row in values["rows"]] == [512]
    assert values["n"] == 24
    assert list(values["rows"][0]["step_ms_by_rows"]) == list("12345678")


def test_the_deepest_depth_leaves_room_for_its_steps(ellm: Ellm, tiny: str) -> None:
    deepest = CONTEXT_TOKENS - 8
    assert ellm("bench", "-m", tiny, "--depths", str(deepest), "--decode", "3").status == 0
    done = ellm("bench", "-m", tiny, "--depths", f"8,{deepest + 1}", "--decode", "3")
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "ellm: --depths 1,193 and the 8 tokens of steps there are more than this model's context "
        "of 1,200 tokens; the deepest that fits is 1,192\n"
    )


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--depths", "0", "'0' is not a whole number from 1 to 2147483647"),
        ("--depths", "512,-4", "'-4' is not a whole number"),
        ("--depths", "4k", "'4k' is not a whole number"),
        ("--depths", "512;4096", "'512;4096' is not a whole number"),
        ("--depths", "1.5", "'1.5' is not a whole number"),
        ("--depths", "2147483648", "'2147483648' is not a whole number"),
        ("--depths", "9" * 5000, "is not a whole number"),
        ("--depths", "", "'' is not a whole number"),
        ("--depths", "512,,4096", "'' is not a whole number"),
        ("--rows", "0", "'0' is not a whole number from 1 to 64"),
        ("--rows", "65", "'65' is not a whole number from 1 to 64"),
        ("--decode", "0", "0 is out of range, allowed is 1 to 10000"),
        ("-b", "0", "1 to 8192"),
        ("-t", "0", "1 to 4096"),
        ("--kv-type", "q8", "int8 or f16"),
        ("-b", "7", "--rows 8 is more than the 7 rows that -b allows a step"),
        ("--text", "absent.txt", "the text absent.txt cannot be read: No such file"),
        ("--text", ".", "the text . cannot be read: Is a directory"),
        ("--json", "absent/b.json", "cannot write absent/b.json: No such file or directory"),
        ("--json", ".", "cannot write .: Is a directory"),
    ],
)
def test_what_cannot_work_is_refused_before_a_model_is_looked_for(
    ellm: Ellm, fake: FakeBackend, option: str, value: str, message: str
) -> None:
    done = ellm("bench", option, value)
    assert (done.status, done.out) == (2, "")
    assert option in done.err or option in ("--text", "--json")
    assert message in " ".join(done.err.split())
    assert fake.references == []


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"\0\1", "is no text: binary"), (b"x" * 16_000_001, "is larger than 16 MB")],
)
def test_a_text_that_is_none_is_refused(
    ellm: Ellm, fake: FakeBackend, tmp_path: Path, data: bytes, message: str
) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    done = ellm("bench", "--text", str(tmp_path / "a.txt"))
    assert (done.status, fake.references) == (2, [])
    assert message in done.err


def test_a_text_that_is_too_short_is_refused_before_loading(
    ellm: Ellm, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ellm.cli.backend.load_parts", None)
    (tmp_path / "a.txt").write_text("hello " * 100)
    done = ellm("bench", "-m", tiny, "--text", str(tmp_path / "a.txt"), "--depths", "1,500")
    assert (done.status, done.out) == (1, "")
    assert "the text has 400 tokens, the deepest of --depths needs 500" in done.err


def test_a_failed_measurement_leaves_no_file(
    ellm: Ellm, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: Benchmark) -> object:
        raise NativeError("the step failed")

    monkeypatch.setattr(Benchmark, "results", fail)
    done = ellm("bench", "-m", tiny, *QUICK, "--quiet", "--json", str(tmp_path / "b.json"))
    assert (done.status, done.out, done.err) == (1, "", "ellm: the step failed\n")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_with_130_and_writes_nothing(folder: Path, tmp_path: Path) -> None:
    environment = os.environ | {"ELLM_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "ellm", "bench", "-m", str(folder / "long.gguf")]
    process = subprocess.Popen(
        [*command, "--depths", "100000", "--json", str(tmp_path / "b.json")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("reading 100,000 random tokens")
        time.sleep(1)  # the model is loaded and the tokens are being read
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert err.rstrip().endswith("ellm: interrupted")
    assert "Traceback" not in err
    assert time.monotonic() - begin < 5
    assert list(tmp_path.iterdir()) == []
