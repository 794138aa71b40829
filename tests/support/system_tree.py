"""Writes a `/proc` and `/sys` tree as recorded on real systems, cut to the lines that count."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

GIB = 1 << 30

MEMINFO = "MemTotal:       24684092 kB\nMemFree:        22294632 kB\nMemAvailable:   16777216 kB\n"

# systemd host, unified hierarchy.
HOST_V2 = {
    "proc/meminfo": MEMINFO,
    "proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope\n",
    "proc/self/mountinfo": (
        "24 30 0:22 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw\n"
        "34 23 0:29 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 "
        "rw,nsdelegate,memory_recursiveprot\n"
    ),
}

# Docker with a private control group namespace: the container's group is the mount's root.
DOCKER_V2 = {
    "proc/meminfo": MEMINFO,
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": (
        "1071 1062 0:110 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw\n"
        "1076 1075 0:29 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw\n"
    ),
}

# Docker on version 1, host namespace: the path in /proc is the host's, the mount shows its end.
DOCKER_V1 = {
    "proc/meminfo": MEMINFO,
    "proc/self/cgroup": (
        "11:memory:/docker/4f2a\n4:cpu,cpuacct:/docker/4f2a\n1:name=systemd:/docker/4f2a\n"
    ),
    "proc/self/mountinfo": (
        "620 619 0:53 /docker/4f2a /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory\n"
        "621 619 0:30 /docker/4f2a /sys/fs/cgroup/cpu,cpuacct ro,nosuid - cgroup cgroup "
        "rw,cpu,cpuacct\n"
    ),
}

# Hybrid: version 1 controllers and an empty version 2 hierarchy beside them.
HYBRID = {
    "proc/meminfo": MEMINFO,
    "proc/self/cgroup": "4:memory:/process_api/61a9\n1:cpu:/\n0::/\n",
    "proc/self/mountinfo": (
        "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
    ),
}


def write_tree(root: Path, *parts: Mapping[str, str]) -> Path:
    for part in parts:
        for name, text in part.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return root


def thread_status(cpus: str) -> dict[str, str]:
    return {"proc/thread-self/status": f"Name:\tpython\nCpus_allowed_list:\t{cpus}\n"}
