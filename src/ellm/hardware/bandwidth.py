"""Read bandwidth of this machine, measured once per process and thread count."""

from __future__ import annotations

import functools

from ellm.hardware.cpus import choose_cpus
from ellm.hardware.memory import available_memory_bytes

PROBE_SECONDS = 0.3
# Server CPUs share last level caches of 260 MB and more: less would measure those.
PROBE_BYTES = 1 << 30


@functools.cache
def read_bandwidth_gb_per_s(threads: int) -> float:
    """Return what `threads` threads read per second, in 1e9 bytes; the first call measures it.

    Raises:
        NativeError: The native core is missing.
    """
    # Not at the top: statistics are kept without the compiled core, too.
    from ellm import native

    nbytes = min(PROBE_BYTES, available_memory_bytes() // 4)
    return native.read_bandwidth_gb_per_s(choose_cpus(threads), nbytes, PROBE_SECONDS)
