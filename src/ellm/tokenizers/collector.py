"""Keeps the cyclic garbage collector out of the way while a vocabulary is built."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the cyclic collector from looking at a vocabulary's objects again and again.

    Reading one makes hundreds of thousands of objects that all stay: a fifth of the time went
    there.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
