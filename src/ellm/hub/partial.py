"""A file that arrives in parts and survives interruption between them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

from ellm.errors import DownloadError
from ellm.hub.progress import Progress, sha256_of


@dataclass(slots=True)
class PartialFile:
    """The joined parts so far (`NAME.partial`) and a journal of where each ended.

    A part that was being written when the process died is cut off at the next start; the journal
    lists only whole parts. The checksum of the joined file judges everything in the end, so the
    journal needs none of its own.

    Attributes:
        target: The file to make.
        sha256: Its checksum.
        parts: Names of all its parts, in order.
        ends: Byte offset at which each finished part ends.
    """

    target: Path
    sha256: str
    parts: tuple[str, ...]
    ends: list[int] = field(default_factory=list)

    @classmethod
    def open(cls, target: Path, sha256: str, parts: tuple[str, ...]) -> Self:
        """Take up what an earlier run left of the same file, or start at nothing."""
        partial = cls(target, sha256, parts)
        partial.ends = partial._usable_ends()
        if partial.ends:
            os.truncate(partial.path, partial.ends[-1])
        else:
            partial.discard()
        return partial

    @property
    def path(self) -> Path:
        """The joined parts."""
        return self.target.with_name(f"{self.target.name}.partial")

    @property
    def journal(self) -> Path:
        """The list of finished parts, as JSON."""
        return self.target.with_name(f"{self.target.name}.partial.json")

    @property
    def done_bytes(self) -> int:
        """Bytes of finished parts."""
        return self.ends[-1] if self.ends else 0

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the parts still to come, in order."""
        return self.parts[len(self.ends) :]

    def append(self) -> BinaryIO:
        """Open for writing the next part; `commit` makes it count."""
        return self.path.open("ab")

    def commit(self) -> None:
        """Record that everything written so far is whole parts."""
        self.ends.append(self.path.stat().st_size)
        record = {
            "sha256": self.sha256,
            "parts": [
                {"name": name, "end": end} for name, end in zip(self.parts, self.ends, strict=False)
            ],
        }
        fresh = self.journal.with_suffix(".json.new")
        fresh.write_text(json.dumps(record), encoding="utf-8")
        fresh.replace(self.journal)

    def finish(self, progress: Progress) -> Path:
        """Check the joined file and move it to its place in one step.

        Raises:
            DownloadError: The checksum is wrong; what was fetched is deleted.
        """
        found = sha256_of(self.path, progress)
        if found != self.sha256:
            self.discard()
            raise DownloadError(
                f"{self.target.name}: SHA-256 of the download is {found}, expected {self.sha256}; "
                "it was deleted, run the command again to fetch it afresh"
            )
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        self.path.replace(self.target)
        self.journal.unlink(missing_ok=True)
        return self.target

    def discard(self) -> None:
        """Delete everything fetched so far."""
        self.path.unlink(missing_ok=True)
        self.journal.unlink(missing_ok=True)
        self.ends = []

    def _usable_ends(self) -> list[int]:
        try:
            record = json.loads(self.journal.read_text(encoding="utf-8"))
            names = tuple(part["name"] for part in record["parts"])
            ends = [int(part["end"]) for part in record["parts"]]
            size = self.path.stat().st_size
            same = record["sha256"] == self.sha256 and names == self.parts[: len(names)]
        except (OSError, ValueError, KeyError, TypeError):
            return []
        ascending = all(a < b for a, b in zip([0, *ends], ends, strict=False))
        return ends if same and ascending and ends and ends[-1] <= size else []
