"""The order in which pages go, against a slow search of it; and what the index answers."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ellm.kv.block_keys import KEY_BYTES as CHAIN_KEY_BYTES
from ellm.kv.disk import page_format
from ellm.kv.disk.index_file import open_for_writing
from ellm.kv.disk.page_format import KEY_BYTES, NO_PARENT
from ellm.kv.disk.page_index import Model, PageIndex, Place, Row
from ellm.program.executor import BLOCK_TOKENS

from .blocks import FAST_FOLDER

MODEL = Model(bytes(32), 64)


@contextmanager
def empty_index() -> Iterator[PageIndex]:
    with tempfile.TemporaryDirectory(dir=FAST_FOLDER) as folder:
        index = PageIndex(open_for_writing(Path(folder) / "index.sqlite", lambda _: None))
        yield index
        index.close()


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "little")


def row(number: int, parent: int | None, last_used: int, *, model: int = 1) -> Row:
    behind = NO_PARENT if parent is None else key(parent)
    return Row(model, key(number), behind, Place(1, number * 4096, 4096), last_used, 0)


@st.composite
def forests(draw: st.DrawFn) -> list[Row]:
    """Trees of pages of two models; a page may name one that is not there."""
    rows: list[Row] = []
    for number in range(1, draw(st.integers(1, 14)) + 1):
        parent = draw(st.one_of(st.none(), st.integers(1, number)))
        model = draw(st.integers(1, 2))
        rows.append(row(number, parent, draw(st.integers(1, 6)), model=model))
    return rows


def leaves(rows: list[Row]) -> list[Row]:
    behind = {(each.model, each.parent) for each in rows if each.parent != each.key}
    return [each for each in rows if (each.model, each.key) not in behind]


@settings(deadline=None, max_examples=150)
@given(rows=forests(), kept=st.sets(st.integers(1, 14), max_size=2))
def test_the_page_that_goes_is_the_leaf_that_was_not_used_for_longest(
    rows: list[Row], kept: set[int]
) -> None:
    names = {(model, key(number)) for number in kept for model in (1, 2)}
    with empty_index() as index, index.transaction():
        index.add(rows)
        removed = None
        while True:
            candidates = [each for each in leaves(rows) if (each.model, each.key) not in names]
            found = index.oldest_leaf(names, removed=removed)
            if not candidates:
                assert found is None
                break
            assert found in candidates
            assert found.last_used == min(each.last_used for each in candidates)
            assert index.remove(found.place) == 4096
            rows = [each for each in rows if each != found]
            removed = found


def test_sizes_are_those_of_blocks_and_their_keys() -> None:
    assert page_format.PAGE_TOKENS == BLOCK_TOKENS
    assert KEY_BYTES == CHAIN_KEY_BYTES


def test_a_transaction_that_is_left_by_an_exception_changes_nothing() -> None:
    with empty_index() as index:
        index.add([row(1, None, 1)])
        with pytest.raises(KeyError):
            change_and_fail(index)
        assert [each.key for each in index.pages_of(1)] == [key(1)]


def change_and_fail(index: PageIndex) -> None:
    with index.transaction():
        index.remove(row(1, None, 1).place)
        index.add([row(2, None, 1)])
        raise KeyError


def test_extents_say_where_segments_end_and_what_lives() -> None:
    with empty_index() as index:
        index.add([row(number, None, 1) for number in (0, 1, 5)])
        index.move([(Place(1, 4096, 4096), Place(3, 0, 4096))])
        extents = index.extents()
        assert {number: (each.end, each.live_bytes) for number, each in extents.items()} == {
            1: (6 * 4096, 2 * 4096),
            3: (4096, 4096),
        }
        index.remove_beyond(1, 6 * 4096 - 1)
        assert index.extents()[1].end == 4096


def test_damage_between_tables_and_indexes_is_found(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    index = PageIndex(open_for_writing(path, lambda _: None))
    index.add([row(number, None, 1) for number in range(5)])
    index.check()
    index.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA writable_schema = ON")
    # An index that covers less than SQLite now believes.
    connection.execute("UPDATE sqlite_master SET rootpage = 1 WHERE name = 'pages_by_use'")
    connection.commit()
    connection.close()
    damaged = PageIndex(sqlite3.connect(path, isolation_level=None))
    with pytest.raises(sqlite3.DatabaseError) as caught:
        damaged.check()
    assert caught.value.sqlite_errorcode & 0xFF == sqlite3.SQLITE_CORRUPT
    damaged.close()
