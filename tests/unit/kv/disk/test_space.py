"""Space comes back in whole files; what lives on is moved, and readers do not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from ellm.kv.disk.page_format import HEADER_BYTES
from ellm.kv.disk.space import Space

from .blocks import PAGE_BYTES, all_found, block, chain, found, open_cache, put, segments

# Ten pages a segment.
QUOTA = 80 * PAGE_BYTES


def test_segments_that_are_mostly_dead_are_rewritten_and_deleted(tmp_path: Path) -> None:
    kept = [block(f"kept/{index}") for index in range(4)]
    with open_cache(tmp_path, quota_bytes=QUOTA) as cache:
        for index, each in enumerate(kept):
            put(cache, each, *(block(f"lost/{index}/{other}") for other in range(9)))
        assert len(segments(tmp_path)) == 4
        assert all(all_found(cache, kept))
        put(cache, block("last"))  # the reads are noted before it
        # Twice what stays, and less than a segment.
        given_back = cache.prune(9 * PAGE_BYTES)
        assert given_back == 41 * PAGE_BYTES - cache.bytes_used
        assert cache.bytes_used <= 9 * PAGE_BYTES
        assert all(all_found(cache, [*kept, block("last")]))
        assert len(segments(tmp_path)) <= 2
        # A file that is open still takes its space.
        assert not any(file.is_unlinked for file in cache._segments._open.values())
    with open_cache(tmp_path, quota_bytes=QUOTA) as cache:
        assert all(all_found(cache, [*kept, block("last")]))


def test_dead_pages_go_before_living_ones(tmp_path: Path) -> None:
    blocks = chain("a", 10)
    with open_cache(tmp_path, quota_bytes=QUOTA) as cache:
        put(cache, *blocks)
        for path in segments(tmp_path):
            damage_pages(path, range(4, 10))
        assert cache.verify().bad == 6
        assert cache.flush(60)
        assert cache.prune(9 * PAGE_BYTES) == 6 * PAGE_BYTES
        assert all(all_found(cache, blocks[:4]))


def test_a_damaged_page_is_not_moved(tmp_path: Path) -> None:
    singles = [block(f"{index}") for index in range(10)]
    with open_cache(tmp_path, quota_bytes=QUOTA) as cache:
        put(cache, *singles)
        assert all(all_found(cache, singles[:4]))
        put(cache, block("last"))
        damage_pages(segments(tmp_path)[0], [2])
        cache.prune(5 * PAGE_BYTES)
        assert all_found(cache, singles[:4]) == [True, True, False, True]
        assert cache.verify().bad == 0


def test_pages_that_lie_in_each_others_places_are_not_moved(tmp_path: Path) -> None:
    singles = [block(f"{index}") for index in range(10)]
    with open_cache(tmp_path, quota_bytes=QUOTA) as cache:
        put(cache, *singles)
        assert all(all_found(cache, singles[:4]))
        put(cache, block("last"))
        path = segments(tmp_path)[0]
        data = path.read_bytes()
        first, second = data[:PAGE_BYTES], data[PAGE_BYTES : 2 * PAGE_BYTES]
        path.write_bytes(second + first + data[2 * PAGE_BYTES :])
        cache.prune(5 * PAGE_BYTES)
        assert cache.pages == 3
        assert all_found(cache, singles[:4]) == [False, False, True, True]


def test_a_reader_that_has_the_old_file_open_goes_on(tmp_path: Path) -> None:
    kept = [block(f"kept/{index}") for index in range(4)]
    with (
        open_cache(tmp_path, quota_bytes=QUOTA) as cache,
        open_cache(tmp_path, read_only=True) as reader,
    ):
        put(cache, *kept, *(block(f"lost/{index}") for index in range(6)))
        assert all(all_found(reader, kept))
        old = reader._segments.get(1)
        places = reader._lookup.places(reader._model, [each.key for each in kept[:1]])
        assert all(all_found(cache, kept))
        put(cache, block("last"))
        cache.prune(5 * PAGE_BYTES)
        assert old.is_unlinked
        payload = kept[0].payload.copy()
        payload[:] = 0
        assert old.read(places[0].offset, payload) is not None
        assert (payload == kept[0].payload).all()
        assert all(all_found(reader, kept))
        # Its next question lets go of the file, and with it of the space.
        reader.present([])
        assert 1 not in reader._segments._open


def test_a_reader_that_comes_too_late_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [block(f"kept/{index}") for index in range(4)]
    with (
        open_cache(tmp_path, quota_bytes=QUOTA) as cache,
        open_cache(tmp_path, read_only=True) as reader,
    ):
        put(cache, *kept, *(block(f"lost/{index}") for index in range(6)))
        assert all(all_found(cache, kept))
        put(cache, block("last"))
        ask = reader._lookup.places
        asked = 0

        def rewrite_behind(*question: object) -> object:
            nonlocal asked
            answer = ask(*question)  # type: ignore[arg-type]
            asked += 1
            if asked == 1:
                cache.prune(5 * PAGE_BYTES)
            return answer

        monkeypatch.setattr(reader._lookup, "places", rewrite_behind)
        assert found(reader, kept[0])
        assert asked == 2


@pytest.mark.parametrize("step", ["append", "sync", "move", "remove_segments", "delete"])
def test_a_rewrite_that_is_cut_off_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    kept = [block(f"kept/{index}") for index in range(4)]
    cache = open_cache(tmp_path, quota_bytes=QUOTA)
    put(cache, *kept, *(block(f"lost/{index}") for index in range(6)))
    assert all(all_found(cache, kept))
    put(cache, block("last"))

    def fail(*_: object) -> None:
        raise OSError(5, "cut off")

    rewrite = Space._rewrite

    def rewrite_with_failure(space: Space, number: int) -> None:
        owner = space._index if hasattr(space._index, step) else space._log
        monkeypatch.setattr(owner, step, fail)
        rewrite(space, number)

    monkeypatch.setattr(Space, "_rewrite", rewrite_with_failure)
    cache.prune(5 * PAGE_BYTES)
    assert not cache.writable
    assert all(all_found(cache, kept))
    cache.close()
    monkeypatch.undo()
    with open_cache(tmp_path, quota_bytes=QUOTA) as again:
        assert all(all_found(again, kept))
        assert again.verify().bad == 0
        # What was copied before, or was not deleted any more, takes no room.
        assert again.bytes_used <= 11 * PAGE_BYTES


def damage_pages(path: Path, numbers: range | list[int]) -> None:
    with path.open("r+b") as file:
        for number in numbers:
            file.seek(number * PAGE_BYTES + HEADER_BYTES)
            file.write(b"damaged")
