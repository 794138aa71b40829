"""What machine this is, for records of measurements."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from ellm.hardware.cgroups import read_text
from ellm.hardware.cpus import thread_limit
from ellm.hardware.memory import available_memory_bytes


@dataclass(frozen=True, slots=True)
class Machine:
    """What a figure measured here depends on, beside the model.

    Attributes:
        cpu: The CPU's name.
        usable_cpus: Threads of this process that can all run at once.
        available_memory_bytes: Memory this process may still take.
    """

    cpu: str
    usable_cpus: int
    available_memory_bytes: int


def this_machine(root: Path = Path("/")) -> Machine:
    """Return what this process is given of the machine it runs on.

    Args:
        root: Where `proc` and `sys` are; a recorded tree in tests.

    Raises:
        NativeError: The system does not say how much memory there is.
    """
    return Machine(cpu_name(root), thread_limit(root), available_memory_bytes(root))


def cpu_name(root: Path = Path("/")) -> str:
    """Return the name of the first CPU, or its architecture where the system names none, as on ARM.

    Source: proc(5), /proc/cpuinfo.
    """
    text = read_text(root / "proc/cpuinfo") or ""
    match = re.search(r"^model name\s*: *(\S.*)$", text, re.MULTILINE)
    return " ".join(match[1].split()) if match else platform.machine()
