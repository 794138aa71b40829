from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Ellm
from .fakes import FakeBackend, FakeTokenizer


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.txt").write_text("The contract ends after ninety days.")
    return tmp_path


def test_the_answer_is_on_stdout_and_all_else_on_stderr(
    ellm: Ellm, fake: FakeBackend, report: Path
) -> None:
    (report / "notes").mkdir()
    (report / "notes" / "n.bin").write_bytes(b"\0")
    (report / "notes" / "old.txt").write_bytes(b"caf\xe9")
    done = ellm("ask", "report.txt", "notes", "-p", "When does it end?")
    assert (done.status, done.out) == (0, "ninety days notice\n")
    assert "+ report.txt, 36 characters" in done.err
    assert "+ notes/old.txt (read as Latin-1)" in done.err
    assert "1 entry skipped: 1 binary (notes/n.bin)" in done.err
    assert "fits the context of 100" in done.err
    assert fake.tokenizer.encoded[0].endswith("answer this question: When does it end?")
    assert fake.engine.closed


@pytest.mark.usefixtures("report")
def test_the_stats_block_names_ceiling_and_what_was_reached(ellm: Ellm, fake: FakeBackend) -> None:
    done = ellm("ask", "report.txt", "-p", "?")
    prompt_tokens = len(fake.engine.requests[0][0])
    assert f"prompt   {prompt_tokens} tokens, first token after 600 ms (250 tok/s)" in done.err
    assert "answer   3 tokens (80.0 tok/s); the model ended it" in done.err
    assert "160 tok/s = 16.0 GB/s / 100 MB per token; reached 50%" in done.err
    assert "mem_bandwidth_util 0.50" in done.err
    assert "weights 98 MB, KV 2 MB, arena 300 kB, peak 123 MB" in done.err
    assert "scalar, 2 threads, model_load_ms 12" in done.err


@pytest.mark.usefixtures("report")
def test_context_and_answer_follow_the_prompt(ellm: Ellm, fake: FakeBackend) -> None:
    ellm("ask", "report.txt", "-p", "?", "-n", "7")
    prompt, params = fake.engine.requests[0]
    assert params.max_tokens == 7
    assert fake.engine.options["context_tokens"] == len(prompt) + 7


@pytest.mark.usefixtures("report")
def test_every_sampling_option_reaches_the_engine(ellm: Ellm, fake: FakeBackend) -> None:
    options = (
        "-m x -n 3 -c 99 -t 2 -b 64 --kv-type f16 --no-mmap --temperature 0.5 --top-k 40 "
        "--top-p 0.9 --min-p 0.1 --repeat-penalty 1.1 --presence-penalty 0.2 "
        "--frequency-penalty -0.3 --seed 42 --stop A --stop B --logit-bias 5=-1.5 "
        "--logit-bias 6=100 --system Short."
    )
    done = ellm("ask", "report.txt", "-p", "?", *options.split())
    assert done.status == 0, done.err
    _, params = fake.engine.requests[0]
    assert (params.max_tokens, params.temperature, params.top_k) == (3, 0.5, 40)
    assert (params.top_p, params.min_p, params.repetition_penalty) == (0.9, 0.1, 1.1)
    assert (params.presence_penalty, params.frequency_penalty) == (0.2, -0.3)
    assert (params.seed, params.stop) == (42, ("A", "B"))
    assert params.logit_bias == {5: -1.5, 6: 100.0}
    chosen = fake.engine.options["options"]
    assert (chosen.threads, chosen.rows_per_chunk, chosen.kv_type) == (2, 64, "f16")
    assert chosen.no_mmap is True
    assert fake.engine.options["context_tokens"] == 99
    assert fake.references == ["x"]
    assert "<system> Short." in fake.tokenizer.encoded[0]


@pytest.mark.usefixtures("fake")
def test_json_is_one_object_and_stderr_is_silent(ellm: Ellm, report: Path) -> None:
    (report / "d").mkdir()
    (report / "d" / "x").write_bytes(b"\0")
    done = ellm("ask", "report.txt", "d", "-p", "?", "--json")
    answer = json.loads(done.out)
    assert answer["text"] == "ninety days notice"
    assert answer["finish_reason"] == "stop"
    assert answer["model"] == "fake.gguf"
    assert answer["documents"] == ["report.txt"]
    assert answer["skipped"] == [{"name": "d/x", "reason": "binary"}]
    assert answer["stats"]["mem_bandwidth_util"] == 0.5
    assert answer["stats"]["model_load_ms"] == 12.4
    assert answer["stats"]["decode_tokens_per_second"] == 80.0
    assert done.err == ""


@pytest.mark.usefixtures("report")
def test_quiet_and_no_stats(ellm: Ellm, fake: FakeBackend) -> None:
    assert ellm("ask", "report.txt", "-p", "?", "--quiet").err == ""
    fake.engines.clear()
    assert "model_load_ms" not in ellm("ask", "report.txt", "-p", "?", "--no-stats").err


@pytest.mark.usefixtures("fake")
def test_a_named_file_that_is_not_read_is_told_even_when_quiet(ellm: Ellm, report: Path) -> None:
    (report / "photo.png").write_bytes(b"\x89PNG\0")
    done = ellm("ask", "report.txt", "photo.png", "-p", "?", "--quiet")
    assert done.status == 0
    assert done.err == "ellm: photo.png was not read: binary\n"


@pytest.mark.usefixtures("report")
def test_a_base_model_stops_at_its_own_next_question(ellm: Ellm, fake: FakeBackend) -> None:
    fake.tokenizer = FakeTokenizer(has_chat_template=False)
    ellm("ask", "report.txt", "-p", "?", "--stop", "X")
    assert fake.engine.requests[0][1].stop == ("X", "\nQuestion:")


def test_what_does_not_fit_is_refused_before_the_model_is_loaded(
    ellm: Ellm, fake: FakeBackend, report: Path
) -> None:
    (report / "long.txt").write_text("word " * 500)
    done = ellm("ask", "long.txt", "-p", "?")
    assert done.status == 5
    assert "does not fit the context of 100 tokens: give fewer or shorter documents" in done.err
    assert done.out == ""
    assert fake.engines == []


@pytest.mark.usefixtures("report")
def test_the_question_can_come_from_stdin(ellm: Ellm, fake: FakeBackend) -> None:
    for arguments in (["-p", "-"], []):
        assert ellm("ask", "report.txt", *arguments, stdin=b"Who signs?\n").status == 0
        assert fake.tokenizer.encoded[-1].endswith("question: Who signs?")


@pytest.mark.usefixtures("report")
def test_a_document_can_come_from_stdin(ellm: Ellm, fake: FakeBackend) -> None:
    assert ellm("ask", "-", "-p", "?", stdin=b"piped text").status == 0
    assert "=== standard input ===\npiped text" in fake.tokenizer.encoded[0]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["ask", "-p", "?"], 2, "Missing argument 'PATH'"),
        (["ask", "report.txt"], 2, "'-p': missing: give the question"),
        (["ask", "report.txt", "-p", " \n"], 2, "'-p': the question is empty"),
        (["ask", "report.txt", "-", "-p", "-"], 2, "standard input cannot be a document and"),
        (["ask", "absent.txt", "-p", "?"], 2, "no such file or directory: absent.txt"),
        (["ask", "binaries", "-p", "?"], 1, "nothing to read in binaries: 2 binary (binaries/a"),
        (["ask", "empty", "-p", "?"], 1, "nothing to read in empty: there is no file"),
        (["ask", "blank.txt", "-p", "?"], 1, "nothing to read in blank.txt: 1 empty (blank.txt)"),
        (["ask", "report.txt", "-p", "?", "-c", "101"], 2, "-c 101 is more than this model's"),
    ],
)
def test_bad_input_ends_with_a_message_and_no_engine(
    ellm: Ellm, fake: FakeBackend, report: Path, arguments: list[str], status: int, message: str
) -> None:
    for name in ("binaries/a", "binaries/b"):
        (report / name).parent.mkdir(exist_ok=True)
        (report / name).write_bytes(b"\0\1")
    (report / "empty").mkdir()
    (report / "blank.txt").write_text("\n")
    done = ellm(*arguments)
    assert done.status == status, done.err
    assert message in done.err
    assert done.out == ""
    assert fake.engines == []
