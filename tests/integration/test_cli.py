"""The `ellm` command with a real model, from end to end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ellm import LLM, SamplingParams
from tests.support.real_models import model_path

DOCUMENTS = Path(__file__).parents[2] / "examples" / "documents"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
ELLM = [sys.executable, "-m", "ellm"]


@pytest.fixture(scope="module")
def smollm2() -> str:
    return str(model_path("smollm2-135m"))


def ellm(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*ELLM, *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


def answer(*arguments: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(ellm(*arguments, "--json").stdout)
    return values


def test_run_prints_what_the_library_answers(smollm2: str) -> None:
    done = ellm("run", "-m", smollm2, "-p", "The capital of France is", "-n", "8")
    with LLM(smollm2, context_tokens=64) as llm:
        expected = llm.generate("The capital of France is", SamplingParams(max_tokens=8)).text
    assert "Paris" in expected
    assert done.stdout == expected + "\n"
    assert re.search(r"ceiling .* GB/s / .* per token; reached \d+%", done.stderr)
    assert "model_load_ms" in done.stderr


def test_ask_finds_the_answer_in_a_directory(smollm2: str, tmp_path: Path) -> None:
    (tmp_path / "menu.md").write_text("The soup of the day is pumpkin soup. It costs four euros.")
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\0")
    found = answer(
        "ask", str(tmp_path), "-m", smollm2, "-p", "What is the soup of the day?", "-n", "40"
    )
    assert "pumpkin" in found["text"].lower()
    assert found["documents"] == [f"{tmp_path}/menu.md"]
    assert found["skipped"] == [{"name": f"{tmp_path}/photo.jpg", "reason": "binary"}]
    assert found["stats"]["answer_tokens"] <= 40
    assert found["stats"]["mem_bandwidth_util"] > 0


def test_a_base_model_without_template_answers_as_well(tmp_path: Path) -> None:
    gemma = str(model_path("gemma3-270m"))
    (tmp_path / "menu.md").write_text("The soup of the day is pumpkin soup. It costs four euros.")
    found = answer(
        "ask", str(tmp_path), "-m", gemma, "-p", "What is the soup of the day?", "-n", "20"
    )
    assert "pumpkin" in found["text"].lower()


def test_sampling_is_repeatable_by_seed(smollm2: str) -> None:
    options = ["run", "-m", smollm2, "-p", "Once", "-n", "12", "--temperature", "1.5"]
    texts = [answer(*options, "--seed", seed)["text"] for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]


def test_the_demo_document_fits_the_default_model(smollm2: str) -> None:
    begun = subprocess.Popen(
        [*ELLM, "ask", str(DOCUMENTS), "-m", smollm2, "-p", "What about termination?"],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with begun as process:
        assert process.stderr is not None
        told = next(line for line in process.stderr if line.startswith("prompt of"))
        tokens = int(re.findall(r"prompt of ([\d,]+) tokens", told)[0].replace(",", ""))
        assert 5000 < tokens < 7500
        time.sleep(3)  # the model is loaded and the prompt is being read
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.rstrip().endswith("ellm: interrupted")
    assert "Traceback" not in err
    assert time.monotonic() - begin < 10


def test_documents_that_do_not_fit_are_refused_with_both_numbers(
    smollm2: str, tmp_path: Path
) -> None:
    (tmp_path / "long.txt").write_text("All work and no play makes Jack a dull boy.\n" * 900)
    done = ellm("ask", str(tmp_path), "-m", smollm2, "-p", "Who is dull?", status=5)
    assert re.search(r"prompt of \d\d?,\d{3} tokens does not fit the context of 8,192", done.stderr)
    assert done.stdout == ""


def test_show_tells_the_facts_of_the_file(smollm2: str) -> None:
    card = json.loads(ellm("show", smollm2, "--json").stdout)
    assert card["architecture"] == "llama"
    assert card["parameters"] == 134_515_008
    assert (card["context_length"], card["vocab_size"]) == (8192, 49152)
    assert card["kv_bytes_per_token"] == {"f32": 46080, "f16": 23040, "int8": 12780}
    assert card["file_bytes"] == 98_362_432
    assert card["licence"] == "apache-2.0"
    assert card["has_chat_template"] is True
    assert list(card["quantization"]) == ["q4_1", "q8_0", "f32"]
    assert 96_000_000 < card["weight_bytes_per_token"] < card["file_bytes"]


def test_list_and_pull_find_the_model_that_is_there(
    smollm2: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "ELLM_MODELS", str(Path(smollm2).parent))
    models = json.loads(ellm("list", "--json").stdout)["models"]
    assert {"smollm2-135m": smollm2}.items() <= {m["name"]: m["path"] for m in models}.items()
    assert json.loads(ellm("pull", "default", "--json").stdout) == {
        "path": smollm2,
        "source": "disk",
        "size_bytes": 98_362_432,
    }


def test_bench_measures_a_model_and_this_machine(smollm2: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    options = ["--depths", "64,200", "--decode", "4", "--rows", "1,8", "--json", str(path)]
    done = ellm("bench", "-m", smollm2, *options)
    values = json.loads(path.read_text())
    assert values["command"] == ["ellm", "bench", "-m", smollm2, *options]
    assert values["read_bandwidth_gb_per_s"] > 0.5
    assert [row["depth_tokens"] for row in values["rows"]] == [64, 200]
    for row in values["rows"]:
        # Weights of 96 MB, and 12.8 kB of int8 keys and values per token.
        weights_bytes = row["bytes_per_token"] - 12780 * row["depth_tokens"]
        assert 90_000_000 < weights_bytes < 98_362_432
        assert list(row["step_ms_by_rows"]) == ["1", "8"]
    assert re.search(
        r"^ +64 +[\d,.]+ tok/s +[\d,.]+ tok/s .* GB/s +\d+% ", done.stdout, re.MULTILINE
    )
