"""Memory this process may still take: the host's and every control group's around it."""

from __future__ import annotations

import re
from pathlib import Path

from ellm.errors import NativeError
from ellm.hardware.cgroups import group_directories, read_integer, read_text

# Version 1 writes "no limit" as LONG_MAX rounded down to a page; nothing real is near it.
NO_LIMIT_BYTES = 1 << 60


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Return how much memory this process can take before the host or a limit stops it.

    The least of the host's MemAvailable and, for this process's control group and each of its
    ancestors, its limit less what it uses. File pages count as free: the kernel drops them first,
    and a model file just downloaded would otherwise look like memory in use.

    Args:
        root: Where `proc` and `sys` are; a recorded tree in tests.

    Raises:
        NativeError: The system does not say.
    """
    host = _field_bytes(read_text(root / "proc/meminfo"), r"MemAvailable:\s+(\d+) kB")
    if host is None:
        raise NativeError("/proc/meminfo has no MemAvailable, expected Linux 3.14 or later")
    rooms = [_room_bytes(directory) for directory in group_directories("memory", root)]
    return min([host, *(room for room in rooms if room is not None)])


def peak_rss_bytes(root: Path = Path("/")) -> int:
    """Return the most memory this process ever held, 0 if the system does not say."""
    # Not getrusage: its maximum is inherited from the process that forked this one.
    return _field_bytes(read_text(root / "proc/self/status"), r"VmHWM:\s+(\d+) kB") or 0


def _field_bytes(text: str | None, pattern: str) -> int | None:
    match = re.search(pattern, text or "")
    return int(match[1]) * 1024 if match else None


def _room_bytes(directory: Path) -> int | None:
    """Return what a control group has left, or None without a limit."""
    stat = _stat(directory)
    if (directory / "memory.max").exists():
        limit = read_integer(directory / "memory.max")
        used = read_integer(directory / "memory.current")
        file_bytes = stat.get("active_file", 0) + stat.get("inactive_file", 0)
    else:
        limits = (
            read_integer(directory / "memory.limit_in_bytes"),
            stat.get("hierarchical_memory_limit"),  # of ancestors that a container cannot see
        )
        limit = min((item for item in limits if item is not None), default=None)
        used = read_integer(directory / "memory.usage_in_bytes")
        file_bytes = stat.get("total_active_file", 0) + stat.get("total_inactive_file", 0)
    if limit is None or used is None or limit >= NO_LIMIT_BYTES:
        return None
    return max(0, limit - max(0, used - file_bytes))


def _stat(directory: Path) -> dict[str, int]:
    text = read_text(directory / "memory.stat") or ""
    return {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}
