"""Where the command line writes: the result to standard output, all else to standard error."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

_REDRAW_SECONDS = 0.1
_PATIENCE_SECONDS = 2.0


class Console:
    """The two streams of one command."""

    def __init__(self, *, quiet: bool = False, as_json: bool = False) -> None:
        """Decide once what is shown: `quiet` and `as_json` both silence progress and notes."""
        self.as_json = as_json
        self.talks = not (quiet or as_json)
        self.redraws = self.talks and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._answer_on_terminal = sys.stdout.isatty()

    def note(self, message: str) -> None:
        """Tell something about the work."""
        if self.talks:
            print(message, file=sys.stderr, flush=True)

    def warn(self, message: str) -> None:
        """Tell something that changes what the result means; `quiet` does not silence it."""
        print(f"ellm: {message}", file=sys.stderr, flush=True)

    def result(self, text: str) -> None:
        """Print a whole result and a line feed."""
        print(text, flush=True)

    def result_object(self, values: Mapping[str, Any]) -> None:
        """Print a result as one line of JSON."""
        print(json.dumps(values, ensure_ascii=False), flush=True)

    def answer(self, text: str) -> None:
        """Print a piece of the answer, unless it goes into a JSON object as a whole.

        On a terminal control characters are left out: a model's text may hold escape sequences.
        """
        if self.as_json:
            return
        if self._answer_on_terminal:
            text = "".join(c for c in text if c.isprintable() or c in "\n\t")
        sys.stdout.write(text)
        sys.stdout.flush()

    def progress(self, label: str) -> ProgressLine:
        """Return a line that follows one piece of work."""
        return ProgressLine(self, label)


class ProgressLine:
    """A line that is redrawn on a terminal; elsewhere a line per tenth of slow work."""

    def __init__(self, console: Console, label: str) -> None:
        """Draw nothing yet."""
        self._console = console
        self._label = label
        self._started = time.monotonic()
        self._drawn_at: float | None = None
        self._next_tenth = 1

    def update(self, done: float, total: float, detail: str) -> None:
        """Show how much is done; `detail` is the text after the percentage."""
        if not self._console.talks:
            return
        now = time.monotonic()
        fraction = min(1.0, done / total) if total > 0 else 1.0
        text = f"{self._label} {fraction:4.0%}  {detail}"
        if self._console.redraws:
            self._redraw(text, now, finished=fraction >= 1.0)
        elif now - self._started > _PATIENCE_SECONDS and fraction * 10 >= self._next_tenth:
            self._next_tenth = int(fraction * 10) + 1
            print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._drawn_at is not None:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn_at = None

    def _redraw(self, text: str, now: float, *, finished: bool) -> None:
        if self._drawn_at is not None and now - self._drawn_at < _REDRAW_SECONDS and not finished:
            return
        self._drawn_at = now
        width = _terminal_width() - 1
        sys.stderr.write(f"\r\x1b[K{text[:width]}")
        sys.stderr.flush()


def _terminal_width() -> int:
    try:
        return max(20, os.get_terminal_size(sys.stderr.fileno()).columns)
    except OSError:
        return 80
