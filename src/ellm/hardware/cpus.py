"""CPUs this process may run on, and how many threads that is worth."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from ellm.hardware.cgroups import group_directories, read_integer, read_text

_LOGGER = logging.getLogger(__name__)


def allowed_cpus(root: Path = Path("/")) -> frozenset[int]:
    """Return the CPUs the calling thread may run on (affinity and cpuset).

    Args:
        root: Where `proc` and `sys` are; a recorded tree in tests.
    """
    status = read_text(root / "proc/thread-self/status") or ""
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)$", status, re.MULTILINE)
    cpus = parse_cpu_list(match[1]) if match else frozenset()
    return cpus or frozenset(range(os.cpu_count() or 1))


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the CPUs of a kernel list such as "0-3,8"; empty if it is not one."""
    if not re.fullmatch(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", text.strip()):
        return frozenset()
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def quota_cpus(root: Path = Path("/")) -> float | None:
    """Return how many CPUs' worth of time the control groups allow, or None without a quota."""
    quotas = [_quota(directory) for directory in group_directories("cpu", root)]
    return min((quota for quota in quotas if quota is not None), default=None)


def thread_limit(root: Path = Path("/")) -> int:
    """Return the most threads that can all run at once, at least 1.

    A quota is rounded down: with 1.5 CPUs the second of two threads stands still for half of each
    period, and the first waits for it at the next barrier.
    """
    cpus = len(allowed_cpus(root))
    quota = quota_cpus(root)
    return max(1, cpus if quota is None else min(cpus, int(quota)))


def choose_cpus(asked: int | None, root: Path = Path("/")) -> list[int]:
    """Return the CPUs to run one thread each on: as many as asked for, never over `thread_limit`.

    Whole cores come first, their second hardware threads last. More than the limit is lowered with
    a warning in the log rather than refused: a command that was written for a larger machine
    works, and no slower than this machine allows.
    """
    limit = thread_limit(root)
    cpus = sorted(allowed_cpus(root), key=lambda cpu: (_sibling_rank(cpu, root), cpu))
    if asked is not None and asked > limit:
        quota = quota_cpus(root)
        _LOGGER.warning(
            "threads=%d lowered to %d: this process may run on %d CPUs%s",
            asked,
            limit,
            len(cpus),
            "" if quota is None else f" with a quota of {quota:g}",
        )
    return cpus[: limit if asked is None else min(asked, limit)]


def _sibling_rank(cpu: int, root: Path) -> int:
    """Return 0 for the first hardware thread of a core, 1 for the second, and so on."""
    path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return sum(other < cpu for other in parse_cpu_list((read_text(path) or "").strip()))


def _quota(directory: Path) -> float | None:
    version_2 = (read_text(directory / "cpu.max") or "").split()
    if len(version_2) == 2 and all(part.isdecimal() for part in version_2):
        quota, period = int(version_2[0]), int(version_2[1])
    else:
        quota = read_integer(directory / "cpu.cfs_quota_us") or 0
        period = read_integer(directory / "cpu.cfs_period_us") or 0
    return quota / period if quota > 0 and period > 0 else None
