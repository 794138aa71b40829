"""Ctrl-C while the native core works.

Python handles a signal in the main thread, between bytecodes: while the main thread itself is in a
native call that takes seconds, Ctrl-C waits. So the work is done in another thread, the main
thread waits, and what it does on Ctrl-C is to tell the engine to stop between two ops.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _End:
    """The last thing a worker sends; `error` is what it failed with."""

    error: BaseException | None = None


def stream_interruptibly(
    work: Callable[[], Iterable[T]], abort: Callable[[], None]
) -> Generator[T, None, None]:
    """Yield what `work` yields, from another thread.

    Args:
        work: Called, and iterated, in the other thread.
        abort: Makes `work` end soon; called when the consumer stops early, by Ctrl-C too.

    Raises:
        BaseException: Whatever `work` raised.
    """
    items: queue.SimpleQueue[T | _End] = queue.SimpleQueue()
    thread = threading.Thread(target=_produce, args=(work, items), daemon=True)
    thread.start()
    ended = False
    try:
        while not isinstance(item := items.get(), _End):
            yield item
        ended = True
        if item.error is not None:
            raise item.error
    finally:
        if not ended:
            abort()
        thread.join(_STOP_SECONDS)


def call_interruptibly(work: Callable[[], T]) -> T:
    """Return what `work` returns, called in another thread.

    On Ctrl-C the thread is left behind: the caller is expected to end the process.

    Raises:
        BaseException: Whatever `work` raised.
    """
    items: queue.SimpleQueue[T | _End] = queue.SimpleQueue()
    threading.Thread(target=_produce, args=(lambda: (work(),), items), daemon=True).start()
    item = items.get()
    if not isinstance(item, _End):
        return item
    raise item.error or RuntimeError("the worker ended without a result")


def _produce(work: Callable[[], Iterable[T]], items: queue.SimpleQueue[T | _End]) -> None:
    try:
        for item in work():
            items.put(item)
    except BaseException as error:  # noqa: BLE001 (raised again in the main thread)
        items.put(_End(error))
    else:
        items.put(_End())
