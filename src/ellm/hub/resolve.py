"""From a model reference to a GGUF file on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ellm.errors import DownloadError, ModelNotFoundError
from ellm.hub.choice import choose_files
from ellm.hub.fetch import Pulled, fetch_entry
from ellm.hub.huggingface import HubClient, HubUnreachableError, Listing, RemoteFile
from ellm.hub.local import locate_entry, locate_path
from ellm.hub.progress import Progress, ignore_progress
from ellm.hub.reference import HubReference, parse_reference
from ellm.hub.registry import ModelEntry, known_names


def resolve(
    reference: str | None = None,
    progress: Progress = ignore_progress,
    *,
    make_client: Callable[[], HubClient] = HubClient.from_environment,
) -> Path:
    """Return the GGUF file of a model, fetching it only when it is not on this machine.

    Args:
        reference: A path, a registry name, or a Hugging Face `org/repo[:quant]`; None is the
            default model.
        progress: Called with bytes done and in total while something is fetched.
        make_client: Makes the hub client, only when the hub is asked.

    Raises:
        ModelNotFoundError: The reference names nothing.
        DownloadError: It names something that could not be fetched.
        CapacityError: The disk has no room for it.
    """
    target = parse_reference(reference)
    if isinstance(target, Path):
        return locate_path(target)
    if isinstance(target, ModelEntry):
        found = locate_entry(target)
        return found or fetch_entry(target, progress, make_client).path
    client = make_client()
    return _cached(client, target) or _fetch(client, target, progress)


def pull(
    reference: str | None = None,
    progress: Progress = ignore_progress,
    *,
    make_client: Callable[[], HubClient] = HubClient.from_environment,
) -> Pulled:
    """Fetch a model unless this machine has it, with its checksum compared either way.

    Unlike `resolve`, a repository is asked for its newest commit even when an older one is cached.

    Args:
        reference: As in `resolve`.
        progress: Called with bytes done and in total.
        make_client: Makes the hub client, only when the hub is asked.

    Raises:
        ModelNotFoundError: The reference names nothing.
        DownloadError: It names something that could not be fetched.
        CapacityError: The disk has no room for it.
    """
    target = parse_reference(reference)
    if isinstance(target, Path):
        return Pulled(locate_path(target), "disk")
    if isinstance(target, ModelEntry):
        return fetch_entry(target, progress, make_client)
    client = make_client()
    return Pulled(_fetch(client, target, progress), "hub")


def _cached(client: HubClient, reference: HubReference) -> Path | None:
    """Return the cached file, or None when the hub has to be asked."""
    listing = client.cached(reference.repo)
    if listing is None:
        return None
    try:
        files = choose_files(listing, reference)
    except ModelNotFoundError:
        return None
    return client.cached_path(listing, files[0].name)


def _fetch(client: HubClient, reference: HubReference, progress: Progress) -> Path:
    try:
        listing = client.listing(reference.repo)
    except HubUnreachableError as error:
        raise DownloadError(
            f"{reference.repo} is no path here, nor in the Hugging Face cache, and {error}. "
            f"Give the path of a GGUF file, a built-in name ({known_names()}), or set HF_ENDPOINT "
            "to a mirror that answers"
        ) from error
    files = choose_files(listing, reference)
    paths = _fetch_all(client, listing, files, progress)
    return paths[0]


def _fetch_all(
    client: HubClient, listing: Listing, files: tuple[RemoteFile, ...], progress: Progress
) -> list[Path]:
    total = sum(file.size_bytes or 0 for file in files)
    paths, before = [], 0
    for file in files:
        start = before

        def report(done: int, _size: int, start: int = start) -> None:
            progress(start + done, max(total, start + done))

        paths.append(client.fetch(listing, file, report))
        before += file.size_bytes or 0
    return paths
