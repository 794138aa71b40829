"""Whatever happened to the files: right bytes or none, the rest is served, and writing goes on."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from ellm.kv.disk import page_format
from ellm.kv.disk.page_file import PageFile
from ellm.kv.disk.page_format import HEADER_BYTES, PageHeader, checksum, pack_tokens

from .blocks import (
    BLOCK_BYTES,
    FINGERPRINT,
    OTHER_FINGERPRINT,
    PAGE_BYTES,
    all_found,
    block,
    chain,
    fill,
    found,
    open_cache,
    put,
    segments,
)

BLOCKS = chain("a", 6)
KEYS = [each.key for each in BLOCKS]
PAGE = 2 * PAGE_BYTES  # where the page of BLOCKS[2] begins
# Where each field of a header begins: page_format._FIELDS.
FIELDS = {
    "magic": 0,
    "version": 8,
    "token count": 12,
    "payload bytes": 16,
    "created": 24,
    "fingerprint": 32,
    "key": 64,
    "parent": 96,
    "payload checksum": 128,
    "first token": 144,
    "last token": 144 + 255,
    "zeros": 420,
    "header checksum": HEADER_BYTES - 16,
    "last byte of the header": HEADER_BYTES - 1,
    "first byte of the payload": HEADER_BYTES,
    "last byte of the payload": HEADER_BYTES + BLOCK_BYTES - 1,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    fill(tmp_path, BLOCKS)
    return tmp_path


def index_of(directory: Path) -> Path:
    return directory / "index.sqlite"


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def require_lost(directory: Path, lost: set[int]) -> None:
    """Require that exactly these blocks are gone, and can be written again."""
    expected = [index not in lost for index in range(len(BLOCKS))]
    with open_cache(directory) as cache:
        assert cache.writable
        assert all_found(cache, BLOCKS) == expected
        assert cache.present(KEYS) == min(lost, default=len(BLOCKS))
        assert cache.flush(60)
        assert cache.pages == sum(expected)
        put(cache, *BLOCKS)
    with open_cache(directory) as cache:
        assert all(all_found(cache, BLOCKS))
        assert cache.verify().bad == 0


@pytest.mark.parametrize("offset", FIELDS.values(), ids=FIELDS)
def test_a_page_with_a_flipped_bit_is_dropped(directory: Path, offset: int) -> None:
    flip(segments(directory)[0], PAGE + offset)
    require_lost(directory, {2})


@pytest.mark.parametrize("offset", FIELDS.values(), ids=FIELDS)
def test_so_it_is_when_the_index_is_made_again(directory: Path, offset: int) -> None:
    flip(segments(directory)[0], PAGE + offset)
    index_of(directory).unlink()
    require_lost(directory, {2})


def test_no_bit_of_a_page_can_change_unseen(directory: Path) -> None:
    path = segments(directory)[0]
    whole = path.read_bytes()
    out = np.zeros(BLOCK_BYTES, dtype=np.uint8)
    for offset in range(HEADER_BYTES + BLOCK_BYTES):
        flip(path, PAGE + offset)
        with open_cache(directory, read_only=True) as cache:
            assert not cache.read(BLOCKS[2].key, BLOCKS[2].tokens, out), offset
        path.write_bytes(whole)


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES, PAGE_BYTES - 1])
def test_a_truncated_segment_loses_its_end(directory: Path, size: int) -> None:
    os.truncate(segments(directory)[0], PAGE + size)
    require_lost(directory, {2, 3, 4, 5})


@pytest.mark.parametrize("size", range(0, 6 * PAGE_BYTES, PAGE_BYTES // 2))
def test_a_segment_that_is_truncated_while_open_loses_its_end(directory: Path, size: int) -> None:
    with open_cache(directory) as cache:
        os.truncate(segments(directory)[0], size)
        # Alignment behind a payload is nothing that can be missed.
        whole = [
            index * PAGE_BYTES + HEADER_BYTES + BLOCK_BYTES <= size for index in range(len(BLOCKS))
        ]
        assert all_found(cache, BLOCKS) == whole


def test_a_deleted_segment_is_a_miss(directory: Path) -> None:
    segments(directory)[0].unlink()
    require_lost(directory, set(range(6)))


def test_a_segment_that_is_deleted_while_open_is_a_miss(directory: Path) -> None:
    with open_cache(directory) as cache:
        segments(directory)[0].unlink()
        assert not any(all_found(cache, BLOCKS))
        assert cache.present(KEYS) == 0


def test_swapped_pages_are_misses(directory: Path) -> None:
    path = segments(directory)[0]
    data = path.read_bytes()
    pages = [data[begin : begin + PAGE_BYTES] for begin in range(0, len(data), PAGE_BYTES)]
    pages[1], pages[4] = pages[4], pages[1]
    path.write_bytes(b"".join(pages))
    with open_cache(directory, read_only=True) as cache:
        assert cache.verify().bad == 2
    require_lost(directory, {1, 4})


def test_swapped_pages_are_found_again_by_their_headers(directory: Path) -> None:
    test_path = segments(directory)[0]
    data = test_path.read_bytes()
    pages = [data[begin : begin + PAGE_BYTES] for begin in range(0, len(data), PAGE_BYTES)]
    test_path.write_bytes(b"".join(reversed(pages)))
    index_of(directory).unlink()
    require_lost(directory, set())


def test_a_page_from_the_end_of_time_does_not_stop_the_start(directory: Path) -> None:
    late = block("late")
    header = PageHeader(
        fingerprint=FINGERPRINT,
        key=late.key,
        parent=bytes(32),
        tokens=pack_tokens(late.tokens),
        payload_bytes=BLOCK_BYTES,
        payload_checksum=checksum(late.payload.tobytes()),
        created_seconds=2**64 - 1,
    )
    file = PageFile.open(segments(directory)[0], writable=True)
    file.write(6 * PAGE_BYTES, header, late.payload.tobytes())
    index_of(directory).unlink()
    with open_cache(directory) as cache:
        assert all(all_found(cache, [*BLOCKS, late]))
        put(cache, block("more"))
        assert found(cache, block("more"))


def test_pages_of_another_version_are_misses(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_format, "FORMAT_VERSION", 2)
    require_lost(directory, set(range(6)))


def test_pages_behind_the_last_row_are_cut_off(directory: Path) -> None:
    path = segments(directory)[0]
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(path.read_bytes()[: PAGE_BYTES + 100])
    stray = path.with_name("segment-00000002.pages")
    shutil.copy(path, stray)
    with open_cache(directory) as cache:
        assert path.stat().st_size == size
        assert not stray.exists()
        assert all(all_found(cache, BLOCKS))


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/etc")])
def test_what_is_no_file_of_its_own_is_no_segment(
    directory: Path, make: Callable[[Path], None]
) -> None:
    path = segments(directory)[0]
    path.unlink()
    make(path)
    with open_cache(directory, read_only=True) as cache:  # nor does it wait for a pipe's writer
        assert not any(all_found(cache, BLOCKS))
    require_lost(directory, set(range(6)))


def test_a_linked_segment_is_neither_read_nor_written(tmp_path: Path) -> None:
    directory, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    fill(directory, BLOCKS)
    segments(directory)[0].rename(elsewhere)
    before = elsewhere.read_bytes()
    segment = directory / "segment-00000001.pages"
    segment.symlink_to(elsewhere)
    with open_cache(directory, read_only=True) as cache:
        assert not any(all_found(cache, BLOCKS))
    require_lost(directory, set(range(6)))
    assert elsewhere.read_bytes() == before


def test_a_linked_index_is_neither_read_nor_written(tmp_path: Path) -> None:
    directory, elsewhere = tmp_path / "cache", tmp_path / "elsewhere"
    fill(directory, BLOCKS)
    index_of(directory).rename(elsewhere)
    before = elsewhere.read_bytes()
    index_of(directory).symlink_to(elsewhere)
    with open_cache(directory, read_only=True) as cache:
        assert cache.present(KEYS) == 0
    require_lost(directory, set())
    assert elsewhere.read_bytes() == before
    assert not index_of(directory).is_symlink()


def truncate_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_page_types(path: Path) -> None:
    for offset in range(4096, path.stat().st_size, 4096):
        flip(path, offset)


def change(statement: str) -> Callable[[Path], None]:
    def run(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            connection.execute(statement)
            connection.commit()

    return run


def replace_by_foreign(path: Path) -> None:
    path.unlink()
    change("CREATE TABLE pages (key)")(path)


UNUSABLE = {
    "missing": Path.unlink,
    "empty": lambda path: os.truncate(path, 0),
    "one byte": lambda path: os.truncate(path, 1),
    "half": truncate_half,
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "text": lambda path: path.write_bytes(b"no database\n" * 1000),
    "flipped": flip_page_types,
    "newer": change("PRAGMA user_version = 2"),
    "of another program": change("PRAGMA application_id = 7"),
    "foreign": replace_by_foreign,
    "other tables": change("ALTER TABLE pages RENAME COLUMN last_used TO lost_used"),
    "text for an offset": change("UPDATE pages SET offset = 'x' WHERE offset = 4096"),
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_index_is_made_again_from_the_pages(
    directory: Path, damage: Callable[[Path], object]
) -> None:
    damage(index_of(directory))
    with open_cache(directory, read_only=True) as cache:
        all_found(cache, BLOCKS)
    require_lost(directory, set())


LIES = {
    "another page": ("UPDATE pages SET offset = 8192 WHERE offset = 4096", {1, 2}),
    "no page": ("UPDATE pages SET offset = 100 WHERE offset = 4096", {1}),
    "behind the end": ("UPDATE pages SET offset = 1 << 40 WHERE offset = 4096", {1}),
    "an offset that no file has": (
        "UPDATE pages SET offset = (1 << 63) - 9000 WHERE offset = 4096",
        {1},
    ),
    "another segment": ("UPDATE pages SET segment = 7 WHERE offset = 4096", {1}),
    "another length": ("UPDATE pages SET length_bytes = 1 WHERE offset = 4096", set()),
    "another parent": ("UPDATE pages SET parent = key", set()),
    "the far future": ("UPDATE pages SET last_used = (1 << 62)", set()),
}


@pytest.mark.parametrize(("lie", "lost"), LIES.values(), ids=LIES)
def test_an_index_that_lies_costs_pages_and_no_answer(
    directory: Path, lie: str, lost: set[int]
) -> None:
    change(lie)(index_of(directory))
    with open_cache(directory, read_only=True) as cache:
        assert {index for index, there in enumerate(all_found(cache, BLOCKS)) if not there} == lost


def test_pages_under_the_name_of_another_model_are_misses(directory: Path) -> None:
    change(f"UPDATE models SET fingerprint = x'{OTHER_FINGERPRINT.hex()}'")(index_of(directory))
    with open_cache(directory, fingerprint=OTHER_FINGERPRINT) as cache:
        assert cache.present(KEYS) == 6
        assert not any(all_found(cache, BLOCKS))
        assert cache.present(KEYS) == 0


@pytest.mark.parametrize("damage", [Path.unlink, UNUSABLE["zeros"]])
def test_a_log_of_the_index_is_not_taken_for_that_of_the_next(
    directory: Path, damage: Callable[[Path], object]
) -> None:
    cache = open_cache(directory)
    put(cache, block("more"))
    log = directory / "index.sqlite-wal"
    kept = log.read_bytes()
    assert kept
    cache.close()
    damage(index_of(directory))
    log.write_bytes(kept)
    with open_cache(directory) as again:
        assert all(all_found(again, [*BLOCKS, block("more")]))
        assert again.verify().bad == 0


def test_random_damage_never_gives_wrong_bytes_or_fails_to_open(tmp_path: Path) -> None:
    original = tmp_path / "original"
    fill(original, BLOCKS)
    choice = random.Random(7)
    for round_ in range(60):
        directory = tmp_path / f"{round_}"
        shutil.copytree(original, directory)
        for _ in range(choice.randint(1, 12)):
            path = choice.choice([index_of(directory), index_of(directory), *segments(directory)])
            flip(path, choice.randrange(path.stat().st_size))
        with open_cache(directory) as cache:
            all_found(cache, BLOCKS)
            assert cache.present(KEYS) <= 6
            cache.verify()
        # Damage of the index that is found late ends writing, and the next one mends it.
        with open_cache(directory) as cache:
            cache.clear()
            put(cache, *BLOCKS)
            assert all(all_found(cache, BLOCKS)), round_


def test_verify_tells_and_drops_the_bad(directory: Path) -> None:
    flip(segments(directory)[0], PAGE + HEADER_BYTES)
    seen: list[tuple[int, int]] = []
    with open_cache(directory) as cache:
        report = cache.verify(lambda done, total: seen.append((done, total)))
        assert (report.good, report.bad, report.bytes_checked) == (5, 1, 6 * PAGE_BYTES)
        assert seen == [(index * PAGE_BYTES, 6 * PAGE_BYTES) for index in range(1, 7)]
        assert cache.present(KEYS) == 2
        assert cache.flush(60)
        assert cache.verify().bad == 0
        put(cache, BLOCKS[2])
        assert cache.present(KEYS) == 6
        assert found(cache, BLOCKS[2])


def test_one_that_only_reads_drops_a_bad_page_for_itself(directory: Path) -> None:
    flip(segments(directory)[0], PAGE + HEADER_BYTES)
    with open_cache(directory) as writer, open_cache(directory) as reader:
        assert reader.verify().bad == 1
        assert (reader.present(KEYS), reader.pages) == (2, 6)
        assert not found(writer, BLOCKS[2])
        put(writer, BLOCKS[2])
        # It lies elsewhere now.
        assert reader.present(KEYS) == 6
        assert found(reader, BLOCKS[2])
