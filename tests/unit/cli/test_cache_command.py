from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ellm.cli import cache_view
from ellm.kv.disk.disk_cache import DiskCache
from ellm.kv.disk.private_files import WriterLock

from .conftest import Ellm

BLOCK_BYTES = 5000
FIRST, SECOND = b"a" * 32, b"b" * 32


def fill(directory: Path, fingerprint: bytes, pages: int) -> None:
    with DiskCache.open(
        directory, fingerprint=fingerprint, block_bytes=BLOCK_BYTES, quota_bytes=10**9
    ) as cache:
        parent = None
        for number in range(pages):
            key = number.to_bytes(32, "little")
            tokens = np.full(64, number, np.int32)
            assert cache.put(key, parent, tokens, np.full(BLOCK_BYTES, number, np.uint8))
            parent = key
        assert cache.flush()


@pytest.fixture
def kv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "kv"
    monkeypatch.setenv("ELLM_KV_CACHE", str(directory))
    monkeypatch.setattr(cache_view, "known_models", lambda: {FIRST: "m.gguf, int8"})
    return directory


@contextmanager
def another_writer(directory: Path) -> Iterator[None]:
    """Hold what a process holds that writes to the cache."""
    lock = WriterLock.try_acquire(directory / "lock")
    assert lock is not None
    yield
    lock.release()


def damage(directory: Path) -> None:
    """Flip a bit in the middle of the first page."""
    path = min(directory.glob("*.pages"))
    data = bytearray(path.read_bytes())
    data[BLOCK_BYTES // 2] ^= 1
    path.write_bytes(data)


def test_ls_names_models_pages_bytes_and_quota(ellm: Ellm, kv: Path) -> None:
    fill(kv, FIRST, 3)
    fill(kv, SECOND, 2)
    lines = ellm("cache", "ls").out.splitlines()
    rows = {line.split()[0]: line for line in lines[1:-1]}
    assert rows[FIRST.hex()[:12]].endswith("m.gguf, int8")
    assert rows[SECOND.hex()[:12]].endswith("?")
    assert rows[FIRST.hex()[:12]].split()[1:3] == ["3", "192"]
    assert lines[-1].startswith(f"{kv}: 5 pages, ")
    assert " of " in lines[-1]


def test_ls_as_json_adds_up(ellm: Ellm, kv: Path) -> None:
    fill(kv, FIRST, 3)
    listed = json.loads(ellm("cache", "ls", "--json").out)
    (model,) = listed["models"]
    assert (model["pages"], model["tokens"], model["block_bytes"]) == (3, 192, BLOCK_BYTES)
    assert model["fingerprint"] == FIRST.hex()
    assert 3 * BLOCK_BYTES <= model["bytes"] <= listed["bytes"] <= listed["quota_bytes"]


def test_show_takes_the_first_digits(ellm: Ellm, kv: Path) -> None:
    fill(kv, FIRST, 3)
    fill(kv, SECOND, 1)
    done = ellm("cache", "show", FIRST.hex()[:4].upper())
    assert FIRST.hex() in done.out
    assert "3 of 64 tokens" in done.out
    assert json.loads(ellm("cache", "show", SECOND.hex(), "--json").out)["model"] is None
    for digits, told in (("6", "2 of the fingerprints"), ("ff", "none of the"), ("", "none of")):
        done = ellm("cache", "show", digits)
        assert done.status == 1
        assert told in done.err


def test_verify_finds_nothing_wrong_where_nothing_is(ellm: Ellm, kv: Path) -> None:
    fill(kv, FIRST, 3)
    done = ellm("cache", "verify")
    assert (done.status, done.out.split()[:3]) == (0, ["3", "pages", "good"])


def test_verify_drops_bad_pages_and_says_so_by_its_status(ellm: Ellm, kv: Path) -> None:
    fill(kv, FIRST, 3)
    damage(kv)
    done = ellm("cache", "verify")
    assert done.status == 1
    assert done.out.startswith("1 page of 3 bad")
    assert "they are dropped" in done.out
    again = ellm("cache", "verify", "--json")
    assert again.status == 0
    assert json.loads(again.out)["good"] == 2


def test_verify_beside_a_writer_leaves_the_dropping_to_it(ellm: Ellm, kv: Path) -> None:
    fill(kv, FIRST, 3)
    damage(kv)
    with another_writer(kv):
        done = ellm("cache", "verify")
    assert done.status == 1
    assert "another process writes to the cache" in done.out


def test_prune_keeps_to_what_was_asked(ellm: Ellm, kv: Path) -> None:
    fill(kv, FIRST, 20)
    target_bytes = 60_000
    done = ellm("cache", "prune", "--to-gb", str(target_bytes / 1e9), "--json")
    pruned = json.loads(done.out)
    assert pruned["bytes"] <= target_bytes
    assert pruned["freed_bytes"] > 0
    left = json.loads(ellm("cache", "ls", "--json").out)
    assert left["bytes"] == pruned["bytes"]
    assert 0 < left["models"][0]["pages"] < 20
    assert ellm("cache", "prune").status == 2
    assert ellm("cache", "prune", "--to-gb", "-1").status == 2


def test_clear_asks_first(ellm: Ellm, kv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(kv, FIRST, 3)
    assert ellm("cache", "clear", stdin=b"y\n").status == 2  # a pipe is nobody
    monkeypatch.setattr("sys.stdin.readline", lambda: "", raising=False)
    assert ellm("cache", "clear").status == 1  # a terminal without an answer
    assert json.loads(ellm("cache", "ls", "--json").out)["models"] != []
    done = ellm("cache", "clear", "--yes")
    assert done.status == 0
    assert "deleted, 0 B left" in done.out
    assert json.loads(ellm("cache", "ls", "--json").out)["models"] == []


@pytest.mark.parametrize("command", ["prune", "clear"])
def test_what_another_process_writes_to_cannot_be_deleted(
    ellm: Ellm, kv: Path, command: str
) -> None:
    fill(kv, FIRST, 3)
    options = ["--to-gb", "0"] if command == "prune" else ["--yes"]
    with another_writer(kv):
        done = ellm("cache", command, *options)
    assert done.status == 2
    assert "another process writes to it" in done.err


@pytest.mark.parametrize(
    "arguments", [["ls"], ["verify"], ["prune", "--to-gb", "1"], ["clear", "--yes"]]
)
def test_without_a_directory_nothing_is_made(ellm: Ellm, kv: Path, arguments: list[str]) -> None:
    done = ellm("cache", *arguments)
    assert (done.status, done.out) == (0, f"{kv}: nothing is kept there\n")
    assert json.loads(ellm("cache", *arguments, "--json").out)["models"] == []
    assert not kv.exists()


def test_another_directory_can_be_named(ellm: Ellm, kv: Path, tmp_path: Path) -> None:
    fill(tmp_path / "other", FIRST, 2)
    listed = json.loads(ellm("cache", "ls", "--cache-dir", str(tmp_path / "other"), "--json").out)
    assert listed["models"][0]["pages"] == 2
    assert not kv.exists()


def test_models_on_this_machine_are_known_by_the_fingerprints_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ellm.config.cache import CacheConfig
    from ellm.engine.reuse import prefix_config
    from ellm.formats.gguf import GgufFile
    from tests.support.tiny_gguf import tiny_gguf

    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf().build())
    monkeypatch.setenv("ELLM_MODELS", str(tmp_path))
    monkeypatch.setenv("ELLM_CACHE", str(tmp_path / "cache"))
    kept = prefix_config(
        CacheConfig(directory=str(tmp_path / "kv")),
        model_fingerprint=GgufFile.open(path).fingerprint,
        kv_type="f16",
        block_bytes=BLOCK_BYTES,
    )
    assert kept is not None
    assert kept.disk is not None
    kept.disk.close()
    assert cache_view.known_models()[kept.fingerprint] == "tiny.gguf, f16"
