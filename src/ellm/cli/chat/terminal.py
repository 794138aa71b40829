"""The line editor of a chat: history, several lines, pastes that stay whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output

from ellm.cli.chat.reading import is_open
from ellm.kv.disk.private_files import open_private

PROMPT = ">>> "
CONTINUED = "... "
# Pasted texts are not worth typing again by pressing Up.
_MAX_HISTORY_CHARACTERS = 10_000


class TerminalInput:
    """Messages that are typed.

    Enter sends; between three quotes it begins a new line, as Alt+Enter always does. A paste keeps
    its lines until Enter. Ctrl-C forgets what was typed, Ctrl-D on an empty line ends the chat.
    """

    interactive = True

    def __init__(
        self,
        tell: Callable[[str], None],
        *,
        history: Path | None = None,
        keys: Input | None = None,
        screen: Output | None = None,
    ) -> None:
        """Edit lines.

        Args:
            tell: Tells the user something.
            history: File of what was typed, made with mode 0600; None keeps it in memory.
            keys: Where keys come from; the terminal by default.
            screen: Where the line is drawn; the terminal by default.
        """
        self._tell = tell
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=CONTINUED,
            key_bindings=_bindings(),
            history=self._history(history),
            input=keys,
            # The answer alone goes to standard output where that is a file or a pipe.
            output=screen or (None if sys.stdout.isatty() else create_output(sys.stderr)),
        )

    def read(self) -> str | None:
        """Return what was typed; None at the end."""
        while True:
            try:
                return self._session.prompt()
            except KeyboardInterrupt:
                self._tell("Ctrl-D or /exit leaves")
            except EOFError:
                return None

    def _history(self, path: Path | None) -> History:
        if path is None:
            return InMemoryHistory()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(open_private(path, os.O_RDWR | os.O_CREAT))
        except OSError as error:
            self._tell(f"what is typed is not kept: {path}: {error.strerror}")
            return InMemoryHistory()
        return _ShortHistory(str(path))


def history_file() -> Path:
    """Return where this user's history is kept.

    Source: XDG Base Directory Specification; a relative path in XDG_STATE_HOME does not count.
    """
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = named if named.is_absolute() else Path.home() / ".local" / "state"
    return base / "ellm" / "chat-history"


class _ShortHistory(FileHistory):
    """History without pasted texts."""

    def store_string(self, string: str) -> None:
        if len(string) <= _MAX_HISTORY_CHARACTERS:
            super().store_string(string)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return bindings
