"""Many long sessions under a limit of memory: none is killed, none fails, all can go on."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_models import model_path

LIMIT_BYTES = 2 << 30
SESSIONS = 10

# Ten sessions in turn, twice: room in memory for two or three of them, the rest goes to disk.
CHILD = """
import json, sys
from ellm import LLM, SamplingParams

model, cache, sessions, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
params = SamplingParams(max_tokens=8, ignore_eos=True)
answers, known = {}, []
with LLM(model, cache_dir=cache, context_tokens=tokens + 256, kv_cache_gb=0.014) as llm:
    for turn in range(2):
        for session in range(sessions):
            start = 300 * session + 500
            text = [start + i % 251 for i in range(tokens)] + answers.get(session, [])
            out = llm.generate(text + [1000 + turn], params)
            answers[session] = answers.get(session, []) + [1000 + turn] + out.token_ids
            known.append(out.stats.cached_tokens_memory + out.stats.cached_tokens_disk)
        if turn == 0 and not llm._open.core._prefixes._config.disk.flush(60):
            sys.exit("the disk is too slow")
    peak = out.stats.peak_rss_bytes
print(json.dumps({"answers": answers, "known": known, "peak": peak}))
"""


@pytest.fixture
def limited_group() -> Iterator[Path | None]:
    """A memory control group of 2 GB, or None where none can be made."""
    name = f"ellm-test-{uuid.uuid4().hex}"
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / name
        try:
            group.mkdir()
            (group / limit).write_text(str(LIMIT_BYTES))
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    yield None


def run_sessions(tmp_path: Path, tokens: int, group: Path | None) -> dict[str, object]:
    def limit() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))
        else:
            resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))

    arguments = [str(model_path("smollm2-135m")), str(tmp_path / "kv"), str(SESSIONS), str(tokens)]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


@pytest.mark.models
@pytest.mark.parametrize("by_group", [True, False])
def test_ten_sessions_in_turn_under_two_gigabytes(
    tmp_path: Path, limited_group: Path | None, *, by_group: bool
) -> None:
    if by_group and limited_group is None:
        pytest.skip("no control group can be made here")
    result = run_sessions(tmp_path, 300, limited_group if by_group else None)
    known = result["known"]
    assert isinstance(known, list)
    assert known[:SESSIONS] == [0] * SESSIONS
    assert all(count >= 256 for count in known[SESSIONS:])
    assert isinstance(result["peak"], int)
    assert result["peak"] < LIMIT_BYTES
    again = run_sessions(tmp_path, 300, limited_group if by_group else None)
    assert again["answers"] == result["answers"]
    assert isinstance(again["known"], list)
    assert all(count >= 256 for count in again["known"])
