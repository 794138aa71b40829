"""Packs documents for a command and tells what was read and what was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import BinaryIO

from ellm.cli.console import Console
from ellm.cli.documents import Packing, Skipped, pack_documents
from ellm.errors import RequestError
from ellm.units import count_of

_SHOWN_NAMES = 3


def pack_and_tell(
    console: Console, paths: Sequence[str], standard_input: BinaryIO | None = None
) -> Packing:
    """Return the documents that paths name or contain, at least one, and tell what was read.

    Raises:
        ConfigError: A path does not exist.
        RequestError: There is nothing to read.
        CapacityError: There is more text than any context holds.
    """
    packing = pack_documents(paths, standard_input)
    for item in packing.skipped:
        if item.asked_for:
            console.warn(f"{item.name} was not read: {item.reason}")
    for document in packing.documents:
        encoding = f" (read as {document.encoding})" if document.encoding else ""
        console.note(f"+ {document.name}{encoding}, {count_of(len(document.text), 'character')}")
    found = [item for item in packing.skipped if not item.asked_for]
    if found:
        console.note(f"- {count_of(len(found), 'entry', 'entries')} skipped: {_reasons(found)}")
    if not packing.documents:
        raise RequestError(f"nothing to read in {', '.join(paths)}: {_reasons(packing.skipped)}")
    return packing


def _reasons(skipped: list[Skipped]) -> str:
    """Return how often each reason occurred, with the first names."""
    if not skipped:
        return "there is no file"
    told = []
    for reason, count in Counter(item.reason for item in skipped).most_common():
        names = [item.name for item in skipped if item.reason == reason]
        more = ", ..." if count > _SHOWN_NAMES else ""
        told.append(f"{count} {reason} ({', '.join(names[:_SHOWN_NAMES])}{more})")
    return "; ".join(told)
