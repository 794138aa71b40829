"""Packs files and directories into documents: what was read, and what was not and why."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ellm.cli.ignore import IGNORED_DIRECTORIES, IgnoreRules
from ellm.cli.text_files import NotTextError, decode_text
from ellm.errors import CapacityError, ConfigError
from ellm.units import format_bytes

STANDARD_INPUT = "-"
# Ten times the text of the longest contexts that models are trained for.
MAX_FILE_BYTES = 16_000_000
MAX_TOTAL_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class Document:
    """One text.

    Attributes:
        name: Its path as the user would write it; control characters are escaped.
        text: Its content, never blank.
        encoding: Name of the encoding where it was not UTF-8.
    """

    name: str
    text: str
    encoding: str | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or directory that was not read.

    Attributes:
        name: Its path.
        reason: Why.
        asked_for: The user named it, it was not merely found in a directory.
    """

    name: str
    reason: str
    asked_for: bool


@dataclass(slots=True)
class Packing:
    """The outcome: documents sorted by name, each file once."""

    documents: list[Document] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Found:
    path: Path | None  # None is standard input
    name: str
    asked_for: bool


def pack_documents(
    arguments: Sequence[str],
    standard_input: BinaryIO | None = None,
    *,
    max_file_bytes: int = MAX_FILE_BYTES,
    max_total_bytes: int = MAX_TOTAL_BYTES,
) -> Packing:
    """Read every text file that the arguments name or contain.

    A file that is named is read even if it is hidden or ignored; in directories, `.gitignore`,
    hidden names, `node_modules` and the like are left out, and links are followed only to files
    inside the directory.

    Args:
        arguments: Paths, or "-" for standard input.
        standard_input: Where "-" reads.
        max_file_bytes: A larger file is skipped.
        max_total_bytes: More text than this is refused.

    Raises:
        ConfigError: A path does not exist.
        CapacityError: There is more text than any context holds.
    """
    packing = Packing()
    seen: set[tuple[int, int]] = set()
    total_bytes = 0
    for found in _find_all(arguments, packing.skipped):
        try:
            data = _read(found, standard_input, max_file_bytes, seen)
        except OSError as error:
            packing.skipped.append(_unreadable(found.name, error, asked_for=found.asked_for))
            continue
        total_bytes += _add(packing, found, data, max_file_bytes)
        if total_bytes > max_total_bytes:
            raise _too_much(found.name, total_bytes, max_total_bytes)
    packing.documents.sort(key=lambda document: document.name)
    packing.skipped.sort(key=lambda item: item.name)
    return packing


def _find_all(arguments: Sequence[str], skipped: list[Skipped]) -> Iterator[_Found]:
    for argument in arguments:
        if argument == STANDARD_INPUT:
            yield _Found(None, "standard input", asked_for=True)
            continue
        path = Path(argument)
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise ConfigError(f"no such file or directory: {_shown(path)}") from error
        except OSError as error:
            skipped.append(_unreadable(_shown(path), error, asked_for=True))
            continue
        if stat.S_ISDIR(mode):
            yield from _Walk(path.resolve(), path, skipped).files()
        else:
            yield _Found(path, _shown(path), asked_for=True)


class _Walk:
    """Finds the files under one directory, in the order of their names."""

    def __init__(self, root: Path, named: Path, skipped: list[Skipped]) -> None:
        self.root = root
        self.named = named
        self.skipped = skipped

    def files(self) -> Iterator[_Found]:
        pending = [(self.root, IgnoreRules.above(self.root))]
        while pending:
            directory, outer = pending.pop()
            rules = outer.entering(directory)
            try:
                entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
            except OSError as error:
                name, asked_for = self.name_of(directory), directory == self.root
                self.skipped.append(_unreadable(name, error, asked_for=asked_for))
                continue
            for entry in entries:
                path = Path(entry.path)
                reason = self.reason_to_skip(entry, rules)
                if reason:
                    self.skipped.append(Skipped(self.name_of(path), reason, asked_for=False))
                elif entry.is_dir(follow_symlinks=False):
                    pending.append((path, rules))
                else:
                    yield _Found(path, self.name_of(path), asked_for=False)

    def reason_to_skip(self, entry: os.DirEntry[str], rules: IgnoreRules) -> str | None:
        path = Path(entry.path)
        is_directory = entry.is_dir(follow_symlinks=False)
        if entry.name.startswith("."):
            return "hidden"
        if is_directory and entry.name in IGNORED_DIRECTORIES:
            return "ignored directory"
        if rules.ignore(path, is_directory=is_directory):
            return "ignored by .gitignore"
        if entry.is_symlink():
            return self.reason_to_skip_link(path)
        if not is_directory and not entry.is_file(follow_symlinks=False):
            return "not a regular file"
        return None

    def reason_to_skip_link(self, path: Path) -> str | None:
        """Follow links to files in the directory only: never in a loop, never out of it."""
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):
            return "broken link"
        if not target.is_file():
            return "link to a directory" if target.is_dir() else "not a regular file"
        return None if target.is_relative_to(self.root) else "link out of the directory"

    def name_of(self, path: Path) -> str:
        return _shown(self.named / path.relative_to(self.root))


def _read(
    found: _Found,
    standard_input: BinaryIO | None,
    max_file_bytes: int,
    seen: set[tuple[int, int]],
) -> bytes | None:
    """Return a file's bytes, one too many if it is too large; None if it was read before."""
    if found.path is None:
        return standard_input.read(max_file_bytes + 1) if standard_input else None
    with found.path.open("rb") as file:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode):
            identity = (status.st_dev, status.st_ino)
            if identity in seen:
                return None
            seen.add(identity)
        return file.read(max_file_bytes + 1)


def _add(packing: Packing, found: _Found, data: bytes | None, max_file_bytes: int) -> int:
    """Add a file as a document or as skipped; returns how many bytes of text it adds."""
    if data is None:
        return 0
    if len(data) > max_file_bytes:
        _skip(packing, found, f"larger than {format_bytes(max_file_bytes)}")
        return 0
    try:
        decoded = decode_text(data)
    except NotTextError as error:
        _skip(packing, found, str(error))
        return 0
    if not decoded.text.strip():
        _skip(packing, found, "empty")
        return 0
    packing.documents.append(Document(found.name, decoded.text, decoded.encoding))
    return len(data)


def _too_much(name: str, total_bytes: int, max_total_bytes: int) -> CapacityError:
    return CapacityError(
        f"more than {format_bytes(max_total_bytes)} of text, up to {name}: no context holds that, "
        "name fewer files",
        needed=total_bytes,
        available=max_total_bytes,
    )


def _unreadable(name: str, error: OSError, *, asked_for: bool) -> Skipped:
    return Skipped(name, f"cannot be read: {error.strerror or error}", asked_for)


def _skip(packing: Packing, found: _Found, reason: str) -> None:
    packing.skipped.append(Skipped(found.name, reason, found.asked_for))


def _shown(path: Path) -> str:
    """Return a path without characters that would break a line or command a terminal."""
    text = path.as_posix()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
