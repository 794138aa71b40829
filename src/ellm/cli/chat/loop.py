"""Reads messages and commands until there are no more."""

from __future__ import annotations

from ellm.cli.chat.commands import run_command
from ellm.cli.chat.reading import ChatInput, parse
from ellm.cli.chat.talk import Chat
from ellm.errors import EllmError


def talk(chat: Chat, source: ChatInput) -> None:
    """Answer everything that `source` gives.

    Where somebody sits there, what fails is told and the chat goes on.

    Raises:
        EllmError: Something failed and nobody sits there.
        KeyboardInterrupt: An answer was stopped and nobody sits there.
    """
    while not chat.ended and (typed := source.read()) is not None:
        try:
            stopped = _do(chat, typed)
        except EllmError as error:
            if not source.interactive:
                raise
            chat.console.warn(str(error))
        except KeyboardInterrupt:
            if not source.interactive:
                raise
            chat.console.note("interrupted")
        else:
            if stopped and not source.interactive:
                raise KeyboardInterrupt


def _do(chat: Chat, typed: str) -> bool:
    """Do one thing; returns whether it was stopped."""
    line = parse(typed)
    if line is None:
        return False
    if line.command is not None:
        run_command(chat, line.command, line.text)
        return False
    return chat.ask(line.text).finish_reason == "abort"
