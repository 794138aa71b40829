"""Checks every page of a cache, as reading it would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ellm.kv.disk.lookup import Lookup
from ellm.kv.disk.page_index import Model, Place
from ellm.kv.disk.segments import Segments

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a check of all pages found.

    Attributes:
        good: Pages that are what the index says.
        bad: Pages that are damaged or gone; they are not served any more.
        bytes_checked: What the good and the bad ones take, alignment included.
    """

    good: int
    bad: int
    bytes_checked: int


def find_bad_pages(
    lookup: Lookup, segments: Segments, progress: Progress | None
) -> tuple[VerifyReport, list[Place]]:
    """Read every page of every model; return figures and the places of the bad ones.

    Pages that the writer moves or evicts meanwhile are not counted.
    """
    pages = lookup.all_places()
    total_bytes = sum(place.length_bytes for _, _, place in pages)
    done_bytes = 0
    suspects: list[Place] = []
    for model, key, place in pages:
        if not _is_good(segments, model, key, place):
            suspects.append(place)
        done_bytes += place.length_bytes
        if progress is not None:
            progress(done_bytes, total_bytes)
    still = {place for _, _, place in lookup.all_places()} if suspects else set()
    bad = [place for place in suspects if place in still]
    gone_bytes = sum(place.length_bytes for place in suspects if place not in still)
    report = VerifyReport(
        good=len(pages) - len(suspects), bad=len(bad), bytes_checked=total_bytes - gone_bytes
    )
    return report, bad


def _is_good(segments: Segments, model: Model, key: bytes, place: Place) -> bool:
    try:
        page = segments.get(place.segment).read_whole(place.offset, place.length_bytes)
    except (OSError, ValueError, OverflowError):
        return False
    if page is None:
        return False
    header, _ = page
    return (header.fingerprint, header.payload_bytes, header.key) == (*model, key)
