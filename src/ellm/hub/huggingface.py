"""Model files in Hugging Face repositories, through `huggingface_hub`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ellm.errors import CapacityError, DownloadError, ModelNotFoundError
from ellm.hub.progress import Progress, sha256_of
from ellm.units import format_bytes

# The hub either answers within this or another source is tried. A machine without a route drops
# packets silently, and `hf_hub_download` alone would retry for a minute.
ANSWER_TIMEOUT_SECONDS = 5.0
_STALL_SECONDS = 20.0
_ATTEMPTS = 5
_CHUNK_BYTES = 1 << 18
_PARTIAL_CONTENT = 206


class HubUnreachableError(DownloadError):
    """The hub did not answer at all; another source or the local cache may still do."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository; size and checksum where the hub tells them."""

    name: str
    size_bytes: int | None
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """The GGUF files of a repository at one commit."""

    repo: str
    revision: str
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True, slots=True)
class HubClient:
    """The hub at one address with one local cache.

    Attributes:
        endpoint: Address of the hub (`HF_ENDPOINT`).
        cache_dir: Where its files are kept (`HF_HOME`, `HF_HUB_CACHE`).
        offline: Never ask the hub (`HF_HUB_OFFLINE`).
    """

    endpoint: str
    cache_dir: Path
    offline: bool

    @classmethod
    def from_environment(cls) -> Self:
        """Return the hub that the environment describes, as every Hugging Face tool reads it."""
        from huggingface_hub import constants

        return cls(constants.ENDPOINT, Path(constants.HF_HUB_CACHE), constants.HF_HUB_OFFLINE)

    def listing(self, repo: str, revision: str | None = None) -> Listing:
        """Ask the hub for the GGUF files of a repository.

        Raises:
            HubUnreachableError: No answer in time, or offline by request.
            ModelNotFoundError: No such repository, or not for this user.
            DownloadError: The hub refused, or its answer makes no sense.
        """
        if self.offline:
            raise HubUnreachableError(f"{self.endpoint} is not asked: HF_HUB_OFFLINE is set")
        from huggingface_hub import HfApi

        with _translated(self.endpoint, repo):
            info: Any = HfApi(endpoint=self.endpoint).model_info(
                repo, revision=revision, files_metadata=True, timeout=ANSWER_TIMEOUT_SECONDS
            )
            files = tuple(
                RemoteFile(item.rfilename, item.size, item.lfs.sha256 if item.lfs else None)
                for item in info.siblings or ()
                if item.rfilename.lower().endswith(".gguf")
            )
            if not isinstance(info.sha, str):
                raise TypeError("the answer names no commit")
        return Listing(repo, info.sha, files)

    def cached(self, repo: str) -> Listing | None:
        """Return the GGUF files of a repository that are in the local cache, or None."""
        root = self._repo_dir(repo)
        for revision in self._cached_revisions(root):
            snapshot = root / "snapshots" / revision
            names = sorted(
                p.relative_to(snapshot).as_posix()
                for p in snapshot.rglob("*")
                if p.suffix.lower() == ".gguf" and p.is_file()
            )
            if names:
                files = tuple(RemoteFile(name, None, None) for name in names)
                return Listing(repo, revision, files)
        return None

    def cached_path(self, listing: Listing, name: str) -> Path:
        """Return where the cache keeps a file of a listing, there or not."""
        return self._repo_dir(listing.repo) / "snapshots" / listing.revision / name

    def fetch(self, listing: Listing, file: RemoteFile, progress: Progress) -> Path:
        """Download one file into the cache that all Hugging Face tools share.

        Args:
            listing: The repository and commit.
            file: One of its files.
            progress: Called with bytes done and in total.

        Raises:
            CapacityError: The disk has no room for it.
            DownloadError: It could not be fetched, or its checksum is not the hub's.
        """
        target = self.cached_path(listing, file.name)
        if target.is_file():
            return target
        if file.size_bytes is not None:
            require_space(self.cache_dir, file.size_bytes, file.name)
        from huggingface_hub import hf_hub_download

        with _translated(self.endpoint, listing.repo):
            path = Path(
                hf_hub_download(
                    listing.repo,
                    file.name,
                    revision=listing.revision,
                    cache_dir=self.cache_dir,
                    endpoint=self.endpoint,
                    etag_timeout=ANSWER_TIMEOUT_SECONDS,
                    tqdm_class=_reporting_bar(progress, file.size_bytes),
                )
            )
        found = sha256_of(path) if file.sha256 else None
        if found != file.sha256:
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise DownloadError(
                f"{listing.repo}/{file.name}: SHA-256 of the download is {found}, the hub says "
                f"{file.sha256}; it was deleted, run the command again to fetch it afresh"
            )
        return path

    def fetch_into(
        self, listing: Listing, file: RemoteFile, part: Path, size_bytes: int, progress: Progress
    ) -> None:
        """Download one file to a place of its own, continuing what an earlier process left there.

        `hf_hub_download` continues after a dropped connection, but since version 2 no longer after
        the process ended, which is what happens to downloads that take an hour.

        Args:
            listing: The repository and commit.
            file: One of its files.
            part: Where to; its content so far is the beginning of the file.
            size_bytes: Size of the whole file.
            progress: Called with bytes done and in total.

        Raises:
            DownloadError: It could not be fetched; what arrived stays in `part`.
        """
        for attempt in range(_ATTEMPTS):
            before = _size_of(part)
            try:
                with _translated(self.endpoint, listing.repo):
                    self._append_rest(listing, file, part, size_bytes, progress)
            except HubUnreachableError:
                if attempt + 1 == _ATTEMPTS or _size_of(part) == before:
                    raise
            else:
                return

    def _append_rest(
        self, listing: Listing, file: RemoteFile, part: Path, size_bytes: int, progress: Progress
    ) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        done = _size_of(part)
        if done >= size_bytes:
            return
        url = hf_hub_url(listing.repo, file.name, revision=listing.revision, endpoint=self.endpoint)
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if done:
            headers["Range"] = f"bytes={done}-"
        with get_session().stream(
            "GET", url, headers=headers, follow_redirects=True, timeout=_STALL_SECONDS
        ) as response:
            hf_raise_for_status(response)
            continues = response.status_code == _PARTIAL_CONTENT
            with part.open("ab" if continues else "wb") as out:
                for chunk in response.iter_bytes(_CHUNK_BYTES):
                    out.write(chunk)
                    progress(min(out.tell(), size_bytes), size_bytes)
                    if out.tell() > size_bytes:
                        raise ValueError(f"more than {size_bytes} bytes arrived")

    def _repo_dir(self, repo: str) -> Path:
        return self.cache_dir / f"models--{repo.replace('/', '--')}"

    def _cached_revisions(self, root: Path) -> list[str]:
        try:
            newest_first = sorted(
                (root / "snapshots").iterdir(), key=lambda p: p.stat().st_mtime, reverse=True
            )
        except OSError:
            return []
        names = [p.name for p in newest_first]
        main = root / "refs" / "main"
        current = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
        return sorted(names, key=lambda name: name != current)


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def require_space(directory: Path, needed_bytes: int, what: str) -> None:
    """Check that the disk of a directory, which need not exist yet, has room.

    Raises:
        CapacityError: It has not; the message names both numbers.
    """
    existing = directory
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < needed_bytes:
        raise CapacityError(
            f"{what} needs {format_bytes(needed_bytes)} on the disk of {directory}, which has "
            f"{format_bytes(free)} free: make room, or point ELLM_CACHE (HF_HOME for Hugging Face "
            "files) to a larger disk",
            needed=needed_bytes,
            available=free,
        )


@contextmanager
def _translated(endpoint: str, repo: str) -> Iterator[None]:
    """Turn whatever the hub's client raises into one of our errors."""
    from httpx2 import HTTPError
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise DownloadError(
            f"{repo} is gated: accept its terms at {endpoint}/{repo} and set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"{endpoint} has no repository {repo}, or it is private: check the name, set HF_TOKEN"
        ) from error
    except (errors.RevisionNotFoundError, errors.RemoteEntryNotFoundError) as error:
        raise ModelNotFoundError(f"{repo}: no such commit or file on {endpoint}") from error
    except errors.HFValidationError as error:
        raise ModelNotFoundError(f"{repo}: not a repository name: {error}") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        hint = ": check HF_TOKEN" if status in (401, 403) else ""
        raise DownloadError(f"{endpoint} answered with status {status} for {repo}{hint}") from error
    except (HTTPError, errors.LocalEntryNotFoundError, ConnectionError, TimeoutError) as error:
        raise HubUnreachableError(f"cannot reach {endpoint}: {_first_line(error)}") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DownloadError(
            f"{endpoint}: fetching from {repo} failed: {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _reporting_bar(progress: Progress, total_bytes: int | None) -> type[Any]:
    """Return a progress bar class that draws nothing and reports to a callback."""
    from huggingface_hub.utils.tqdm import tqdm

    class ReportingBar(tqdm):
        """Stands in for the hub client's bar; the client only constructs, updates, closes it."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            """Start at what an earlier try had fetched."""
            self.fetched_bytes = int(kwargs.get("initial") or 0)
            self.expected_bytes = total_bytes or int(kwargs.get("total") or 0)
            silent = {**kwargs, "disable": True}
            super().__init__(*args, **silent)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            """Count `n` more bytes."""
            self.fetched_bytes += int(n or 0)
            progress(self.fetched_bytes, max(self.expected_bytes, self.fetched_bytes))
            return None

    return ReportingBar
