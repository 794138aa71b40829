"""Finds the control groups of this process, versions 1 and 2, in or out of a container."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def group_directories(controller: str, root: Path = Path("/")) -> list[Path]:
    """Return this process's directories of a controller, its own first, then its ancestors.

    Directories of version 1 and of version 2 have different files; callers look for those they
    know. With a mount that hides the path (a container's own), the mount itself is the start.

    Args:
        controller: Such as "memory" or "cpu".
        root: Where `proc` and `sys` are; a recorded tree in tests.
    """
    text = read_text(root / "proc/self/mountinfo") or ""
    found: list[Path] = []
    for mount_root, mount_point, version_controllers in _mounts(text):
        for name, path in _memberships(read_text(root / "proc/self/cgroup") or ""):
            wanted = controller if name else ""
            if name and controller not in name.split(","):
                continue
            if wanted in version_controllers:
                found += _upward(root / mount_point.lstrip("/"), _below(mount_root, path))
    return found


def read_text(path: Path) -> str | None:
    """Return the text of a small system file, or None if there is none that can be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def read_integer(path: Path) -> int | None:
    """Return the integer a file holds, or None if it is missing or holds something else."""
    text = (read_text(path) or "").strip()
    return int(text) if re.fullmatch(r"-?\d{1,20}", text) else None


def _mounts(mountinfo: str) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield (root, mount point, controllers) of control group mounts; version 2 has "" alone.

    Source: proc(5), /proc/pid/mountinfo.
    """
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = kind[2].split(",") if kind[0] == "cgroup" else [""]
        yield _unescaped(fields[3]), _unescaped(fields[4]), frozenset(controllers)


def _memberships(cgroup: str) -> Iterator[tuple[str, str]]:
    """Yield (controllers, path) of each line of /proc/self/cgroup; version 2 has no controllers."""
    for line in cgroup.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            yield parts[1], parts[2]


def _below(mount_root: str, path: str) -> PurePosixPath:
    """Return `path` relative to what is mounted, or "." if the mount does not show it."""
    try:
        below = PurePosixPath(path).relative_to(mount_root)
    except ValueError:
        return PurePosixPath()
    return PurePosixPath() if ".." in below.parts else below


def _upward(mount_point: Path, below: PurePosixPath) -> list[Path]:
    own = [mount_point / below, *(mount_point / parent for parent in below.parents)]
    return own if (mount_point / below).is_dir() else [mount_point]


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
