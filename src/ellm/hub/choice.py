"""Which file of a repository a reference means."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from ellm.errors import ModelNotFoundError
from ellm.hub.huggingface import Listing, RemoteFile
from ellm.hub.local import SHARD
from ellm.hub.reference import HubReference

DEFAULT_QUANT = "Q4_K_M"
_COMPANIONS = ("mmproj", "imatrix")  # vision projectors and calibration data: not models


def choose_files(listing: Listing, reference: HubReference) -> tuple[RemoteFile, ...]:
    """Return the file a reference means: one, or all shards of one model in order.

    Without file or quantisation, `Q4_K_M` is taken, else the first file by name.

    Raises:
        ModelNotFoundError: No file fits, several models do, or a shard is missing.
    """
    by_name = {file.name: file for file in listing.files}
    name = reference.filename or _choose_name(listing, reference)
    if name not in by_name:
        raise ModelNotFoundError(f"{listing.repo} has no file {name!r}; {_offer(listing)}")
    match = SHARD.fullmatch(name)
    if match is None:
        return (by_name[name],)
    count = int(match["count"])
    names = [f"{match['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]
    missing = [shard for shard in names if shard not in by_name]
    if missing:
        raise ModelNotFoundError(f"{listing.repo}: shard {missing[0]} of {name} is missing")
    return tuple(by_name[shard] for shard in names)


def _choose_name(listing: Listing, reference: HubReference) -> str:
    candidates = sorted(file.name for file in listing.files if _is_model(file.name))
    if not candidates:
        raise ModelNotFoundError(
            f"{listing.repo} holds no GGUF file; a repository that does often ends in -GGUF"
        )
    fitting = [name for name in candidates if _has_quant(name, reference.quant or DEFAULT_QUANT)]
    if reference.quant is None:
        return (fitting or candidates)[0]
    if not fitting:
        raise ModelNotFoundError(f"{listing.repo} has no {reference.quant} file; {_offer(listing)}")
    if len(fitting) > 1:
        raise ModelNotFoundError(
            f"{listing.repo} has {len(fitting)} {reference.quant} files, name one: "
            f"{', '.join(fitting[:5])}"
        )
    return fitting[0]


def _is_model(name: str) -> bool:
    base = PurePosixPath(name).name.lower()
    shard = SHARD.fullmatch(name)
    return not any(word in base for word in _COMPANIONS) and (
        shard is None or int(shard["index"]) == 1
    )


def _has_quant(name: str, quant: str) -> bool:
    return bool(re.search(rf"(?<![a-z0-9]){re.escape(quant.lower())}(?![a-z0-9_])", name.lower()))


def _offer(listing: Listing) -> str:
    names = sorted(file.name for file in listing.files if _is_model(file.name))
    return f"it has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
