"""Where one chat is kept: in a named session, or nowhere yet."""

from __future__ import annotations

import time
from pathlib import Path

from ellm.cli.chat.conversation import Conversation
from ellm.cli.chat.session_file import Session
from ellm.cli.chat.session_store import OpenSession, SessionStore


class Keeping:
    """The session of a chat, if it has one."""

    def __init__(
        self, store: SessionStore, opened: OpenSession | None, *, model: str | None, model_file: str
    ) -> None:
        """Keep a chat in `opened`, or nowhere.

        Args:
            store: Where sessions are.
            opened: The session; closed by `close`.
            model: What `-m` was.
            model_file: Name of the model's file.
        """
        self._store = store
        self._opened = opened
        self._model = _absolute(model)
        self._model_file = model_file
        found = opened.found if opened else None
        self._created_seconds = found.created_seconds if found else time.time()

    @property
    def name(self) -> str | None:
        """Name of the session."""
        return self._opened.name if self._opened else None

    @property
    def path(self) -> Path | None:
        """File of the session."""
        return self._opened.path if self._opened else None

    def save(self, conversation: Conversation, tokens: int) -> None:
        """Write the conversation, if it is kept.

        Raises:
            EllmError: It cannot be written.
        """
        if self._opened is not None:
            self._opened.write(self._session(conversation, tokens))

    def fork(self, name: str, conversation: Conversation, tokens: int) -> None:
        """Keep the chat in a new session from now on; the one it was in stays as it is.

        Raises:
            EllmError: The name is taken or none, or the session cannot be written; the chat is
                where it was.
        """
        new = self._store.create(name)
        before, self._created_seconds = self._created_seconds, time.time()
        try:
            new.write(self._session(conversation, tokens))
        except BaseException:
            self._created_seconds = before
            new.close()
            raise
        self.close()
        self._opened = new

    def close(self) -> None:
        """Let another process go on with the session."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _session(self, conversation: Conversation, tokens: int) -> Session:
        return Session(
            model=self._model,
            model_file=self._model_file,
            created_seconds=self._created_seconds,
            used_seconds=time.time(),
            tokens=tokens,
            conversation=conversation,
        )


def _absolute(reference: str | None) -> str | None:
    """Return what names the same model from every directory."""
    if reference is None or not Path(reference).expanduser().exists():
        return reference
    return str(Path(reference).expanduser().absolute())
