from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ellm.errors import CapacityError, DownloadError, ModelNotFoundError
from ellm.hub import Pulled, pull, resolve
from ellm.hub.huggingface import HubUnreachableError

from .conftest import COMMIT, FakeHub, unreachable_client

Q4, Q8 = b"four" * 5000, b"eight" * 9000


@pytest.fixture
def stocked(hub: FakeHub) -> FakeHub:
    hub.files |= {
        "README.md": b"hi",
        "m-Q4_K_M.gguf": Q4,
        "m-Q8_0.gguf": Q8,
        "mmproj-f16.gguf": b"v",
    }
    return hub


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("org/repo", Q4),
        ("org/repo:q8_0", Q8),
        ("hf://org/repo:Q4_K_M", Q4),
        ("org/repo/m-Q8_0.gguf", Q8),
    ],
)
def test_the_file_a_reference_means_is_downloaded(
    stocked: FakeHub, reference: str, expected: bytes
) -> None:
    seen: list[tuple[int, int]] = []
    path = resolve(reference, lambda d, t: seen.append((d, t)), make_client=stocked.client)
    assert path.read_bytes() == expected
    assert seen[-1] == (len(expected), len(expected))


def test_without_q4_k_m_the_first_model_is_taken(hub: FakeHub) -> None:
    hub.files |= {"imatrix.gguf": b"x", "z.gguf": b"z", "b.gguf": b"b", "b-Q4_K_M_L.gguf": b"l"}
    assert resolve("org/repo", make_client=hub.client).name == "b-Q4_K_M_L.gguf"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("org/repo:Q5_0", r"no Q5_0 file; it has m-Q4_K_M.gguf, m-Q8_0.gguf$"),
        ("org/repo/x.gguf", r"no file 'x.gguf'; it has m-Q4"),
        ("org/repo:Q4", "no Q4 file"),
    ],
)
def test_what_the_repository_lacks_is_told(stocked: FakeHub, reference: str, message: str) -> None:
    with pytest.raises(ModelNotFoundError, match=message):
        resolve(reference, make_client=stocked.client)


def test_an_ambiguous_quantisation_asks_for_the_file(stocked: FakeHub) -> None:
    stocked.files["other-Q8_0.gguf"] = b"o"
    with pytest.raises(ModelNotFoundError, match=r"has 2 Q8_0 files, name one: m-Q8_0.gguf, other"):
        resolve("org/repo:Q8_0", make_client=stocked.client)


def test_a_repository_without_gguf_is_told(hub: FakeHub) -> None:
    hub.files["model.safetensors"] = b"s"
    with pytest.raises(ModelNotFoundError, match="holds no GGUF file"):
        resolve("org/repo", make_client=hub.client)


def test_all_shards_are_fetched_and_the_first_is_returned(hub: FakeHub) -> None:
    for i in (1, 2, 3):
        hub.files[f"q4/m-Q4_K_M-0000{i}-of-00003.gguf"] = bytes([i]) * (100 * i)
    seen: list[tuple[int, int]] = []
    path = resolve("org/repo", lambda d, t: seen.append((d, t)), make_client=hub.client)
    assert path.name == "m-Q4_K_M-00001-of-00003.gguf"
    assert sorted(p.stat().st_size for p in path.parent.iterdir()) == [100, 200, 300]
    assert seen[-1] == (600, 600)


def test_a_missing_shard_is_told(hub: FakeHub) -> None:
    hub.files["m-00001-of-00002.gguf"] = b"1"
    with pytest.raises(ModelNotFoundError, match=r"shard m-00002-of-00002.gguf"):
        resolve("org/repo", make_client=hub.client)


def test_a_cached_model_is_used_without_asking(stocked: FakeHub) -> None:
    first = resolve("org/repo", make_client=stocked.client)
    asked = len(stocked.requests)
    assert resolve("org/repo", make_client=stocked.client) == first
    assert resolve("org/repo", make_client=lambda: stocked.client(offline=True)) == first
    assert len(stocked.requests) == asked
    assert pull("org/repo", make_client=stocked.client) == Pulled(first, "hub")
    assert len(stocked.requests) > asked


def test_a_dropped_connection_continues_where_it_stopped(
    stocked: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    stocked.drop_once_after = 10_000
    path = resolve("org/repo:Q8_0", make_client=stocked.client)
    assert path.read_bytes() == Q8
    ranges = [r for method, p, r in stocked.requests if method == "GET" and "/resolve/" in p]
    assert ranges == [None, "bytes=10000-"]


def test_a_download_with_the_wrong_checksum_is_deleted(stocked: FakeHub) -> None:
    stocked.wrong_sha.add("m-Q4_K_M.gguf")
    for _ in range(2):
        with pytest.raises(DownloadError, match="SHA-256"):
            resolve("org/repo", make_client=stocked.client)
    assert not list(stocked.cache_dir.rglob("*.gguf"))


def test_disk_space_is_checked_first(stocked: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(CapacityError, match=r"m-Q4_K_M.gguf needs 20 kB"):
        resolve("org/repo", make_client=stocked.client)
    assert not any("/resolve/" in path for _, path, _ in stocked.requests)


@pytest.mark.parametrize(
    ("status", "code", "error", "message"),
    [
        (404, "RepoNotFound", ModelNotFoundError, "no repository org/repo, or it is private"),
        (401, "", DownloadError, "status 401 for org/repo: check HF_TOKEN"),
        (403, "GatedRepo", DownloadError, "is gated: accept its terms"),
        (500, "", DownloadError, "status 500"),
        (429, "", DownloadError, "status 429"),
    ],
)
def test_refusals_become_typed_errors(
    hub: FakeHub, status: int, code: str, error: type[Exception], message: str
) -> None:
    hub.status, hub.error_code = status, code
    with pytest.raises(error, match=message):
        resolve("org/repo", make_client=hub.client)


def test_an_unreachable_hub_fails_within_seconds_and_says_what_to_do() -> None:
    begin = time.monotonic()
    with pytest.raises(DownloadError, match=r"cannot reach http://127.0.0.1:9.*HF_ENDPOINT"):
        resolve("org/repo", make_client=unreachable_client)
    assert time.monotonic() - begin < 10


def test_offline_is_honoured(stocked: FakeHub) -> None:
    with pytest.raises(HubUnreachableError, match="HF_HUB_OFFLINE"):
        stocked.client(offline=True).listing("org/repo")
    assert stocked.requests == []


def test_the_environment_of_other_hugging_face_tools_is_honoured(
    stocked: FakeHub, tmp_path: Path
) -> None:
    program = "from ellm.hub import resolve; print(resolve('org/repo'))"
    environment = {
        **os.environ,
        "HF_ENDPOINT": stocked.endpoint,
        "HF_HOME": str(tmp_path / "hfhome"),
        "HF_TOKEN": "hf_test",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    path = Path(done.stdout.strip())
    assert path.is_relative_to(tmp_path / "hfhome" / "hub")
    assert COMMIT in str(path)
    offline = {**environment, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "empty")}
    failed = subprocess.run(command, env=offline, capture_output=True, text=True, check=False)
    assert "HF_HUB_OFFLINE is set" in failed.stderr
