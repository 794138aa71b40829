"""Starts, feeds, times and stops the process that renders one chat template."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ellm.errors import TemplateError

START_SECONDS = 30.0
RENDER_SECONDS = 2.0
MAX_TEMPLATE_BYTES = 1 << 20
MAX_REPLY_BYTES = 1 << 30
OUTPUT_FACTOR = 4
OUTPUT_EXTRA_CHARS = 64 << 10
_WORKER = Path(__file__).with_name("template_worker.py")
_CHUNK_BYTES = 1 << 16


class TemplateProcess:
    """Renders one template in a process of its own, started when first needed.

    Safe to use from several threads, and after a fork: a child starts its own process. The process
    ends with this object, with this program, and when a template runs over a limit.
    """

    def __init__(self, source: str) -> None:
        """Keep the template; nothing runs yet.

        Raises:
            TemplateError: The template is longer than 1 MiB.
        """
        if len(source.encode(errors="replace")) > MAX_TEMPLATE_BYTES:
            raise TemplateError(f"the chat template is larger than {MAX_TEMPLATE_BYTES} bytes")
        self._source = source
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._finalizer: weakref.finalize[..., TemplateProcess] | None = None
        self._literals: list[str] = []
        _LIVE.add(self)

    def literals(self) -> list[str]:
        """Return the string constants of the template, longest first."""
        with self._lock:
            self._started()
            return list(self._literals)

    def render(self, variables: Mapping[str, Any]) -> str:
        """Return what the template makes of `variables`, which must be JSON values.

        Raises:
            TemplateError: The template failed, refused its input, or ran over its limit of time,
                memory or output.
        """
        payload = json.dumps(variables, ensure_ascii=False)
        limit = OUTPUT_FACTOR * (len(payload) + len(self._source)) + OUTPUT_EXTRA_CHARS
        request = f'{{"limit": {limit}, "variables": {payload}}}'.encode()
        with self._lock:
            return str(self._ask(self._started(), request))

    def close(self) -> None:
        """End the process, if one runs; the next rendering starts another."""
        with self._lock:
            self._stop()

    def forget(self) -> None:
        """After a fork, in the child: leave the process to the parent, whose it is."""
        self._lock = threading.Lock()
        if self._worker is not None and self._finalizer is not None:
            self._finalizer.detach()
            self._worker.abandon()
            self._worker = None

    def _started(self) -> _Worker:
        if self._worker is None:
            self._worker = worker = _Worker()
            self._finalizer = weakref.finalize(self, worker.stop)
            self._receive(worker, b"", START_SECONDS)
            request = json.dumps({"source": self._source}, ensure_ascii=False)
            try:
                self._literals = [str(text) for text in self._ask(worker, request.encode())]
            except TemplateError:
                self._stop()
                raise
        return self._worker

    def _ask(self, worker: _Worker, request: bytes) -> Any:
        reply = self._receive(worker, len(request).to_bytes(4, "big") + request, RENDER_SECONDS)
        if "error" not in reply:
            return reply["result"]
        if reply["spent"]:
            self._stop()
        raise TemplateError(f"the chat template failed: {reply['error']}")

    def _receive(self, worker: _Worker, request: bytes, seconds: float) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = json.loads(worker.exchange(request, seconds))
        except TimeoutError as error:
            self._stop()
            raise TemplateError(f"the chat template ran for more than {seconds:g} s") from error
        except (OSError, EOFError, ValueError) as error:
            self._stop()
            raise TemplateError("the process that renders chat templates ended") from error
        except BaseException:
            # An interrupted exchange leaves half a frame in the pipe.
            self._stop()
            raise
        return reply

    def _stop(self) -> None:
        if self._worker is not None and self._finalizer is not None:
            self._finalizer()
            self._worker = None


class _Worker:
    """One running process and the two pipes to it."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        try:
            # -P: without it the script's own directory comes first in the import path.
            # A session of its own: Ctrl-C in a terminal must not end it in mid-sentence.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise TemplateError(f"cannot start the process for templates: {error}") from error
        self._pipes = [pipe for pipe in (self._process.stdin, self._process.stdout) if pipe]
        self._requests, self._replies = (pipe.fileno() for pipe in self._pipes)
        os.set_blocking(self._requests, False)
        os.set_blocking(self._replies, False)

    def exchange(self, request: bytes, seconds: float) -> bytes:
        """Send `request` and return the body of the next frame, both within `seconds`."""
        deadline = time.monotonic() + seconds
        rest = memoryview(request)
        while rest:
            self._wait(self._requests, select.POLLOUT, deadline)
            rest = rest[os.write(self._requests, rest[:_CHUNK_BYTES]) :]
        size = int.from_bytes(self._read(4, deadline), "big")
        if size > MAX_REPLY_BYTES:
            raise ValueError(size)
        return self._read(size, deadline)

    def stop(self) -> None:
        """End the process and wait for it; in a forked child, do nothing."""
        if os.getpid() != self._owner:
            return
        self._close_pipes()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def abandon(self) -> None:
        """Let go of the pipes, so that the process sees the end of its parent, not of this one."""
        self._close_pipes()
        # Popen warns about processes it has not seen end; this one is not ours to wait for.
        self._process.returncode = 0

    def _close_pipes(self) -> None:
        for pipe in self._pipes:
            pipe.close()

    def _read(self, size: int, deadline: float) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            self._wait(self._replies, select.POLLIN, deadline)
            part = os.read(self._replies, min(size, _CHUNK_BYTES))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    @staticmethod
    def _wait(descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not poll.poll(remaining * 1000):
            raise TimeoutError


_LIVE: weakref.WeakSet[TemplateProcess] = weakref.WeakSet()


def _forget_all() -> None:
    for process in list(_LIVE):
        process.forget()


os.register_at_fork(after_in_child=_forget_all)
