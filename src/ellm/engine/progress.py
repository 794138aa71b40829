"""Tells a caller how far its prompts have been read."""

from __future__ import annotations

import time

from ellm.engine.outputs import ProgressCallback, PromptProgress


class ProgressReporter:
    """Calls back when more prompt tokens were read than the last time."""

    def __init__(self, callback: ProgressCallback | None, total_tokens: int) -> None:
        """Start the clock; without a callback nothing is reported."""
        self._callback = callback
        self._total_tokens = total_tokens
        self._started = time.perf_counter()
        self._reported_tokens = 0

    def report(self, done_tokens: int, *, known_tokens: int = 0) -> None:
        """Call back if `done_tokens` is news; `known_tokens` of them did not have to be read."""
        if self._callback is None or done_tokens <= self._reported_tokens:
            return
        self._reported_tokens = done_tokens
        rate = max(1, done_tokens - known_tokens) / max(time.perf_counter() - self._started, 1e-9)
        left = (self._total_tokens - done_tokens) / rate
        self._callback(PromptProgress(done_tokens, self._total_tokens, rate, left))
