"""What can be typed into a chat besides messages: one entry per command."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ellm.cli.chat.figures import context_use
from ellm.cli.chat.overflow import MODES
from ellm.cli.chat.talk import Chat
from ellm.cli.report import stats_block
from ellm.errors import RequestError
from ellm.units import count_of

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        usage: How it is typed.
        summary: What it does.
        run: Called with the chat and what follows the name.
    """

    usage: str
    summary: str
    run: Callable[[Chat, str], None]


def run_command(chat: Chat, name: str, argument: str) -> None:
    """Run a command.

    Raises:
        RequestError: There is none of that name, or it cannot be done.
        EllmError: It failed.
    """
    command = COMMANDS.get(_ALIASES.get(name, name))
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        hint = f"did you mean /{near[0]}? " if near else ""
        raise RequestError(
            f'there is no command /{name}; {hint}/help lists them, and between """ and """ '
            "everything is a message"
        )
    if argument and command.usage == f"/{name}":
        raise RequestError(f"/{name} takes nothing behind it, found {argument[:80]!r}")
    command.run(chat, argument)


def _file(chat: Chat, argument: str) -> None:
    try:
        paths = [str(Path(word).expanduser()) for word in shlex.split(argument)]
    except (ValueError, RuntimeError) as error:  # an open quote; no such user's home
        raise RequestError(f"/file {argument[:80]}: {error}") from error
    if not paths:
        raise RequestError("/file needs the path of a file or directory")
    chat.add_files(paths)


def _undo(chat: Chat, _argument: str) -> None:
    if not chat.conversation.turns:
        raise RequestError("there is no question to take back")
    question = chat.conversation.turns[-1].question
    chat.change(chat.conversation.undone())
    left = count_of(len(chat.conversation.turns), "question")
    chat.tell("undo", f"taken back: {_shortened(question)}; {left} left")


def _stats(chat: Chat, _argument: str) -> None:
    context = chat.model.room.context_tokens
    lines = [f"  {'context':<8} {context_use(chat.used_tokens(), context)} used"]
    if chat.last is not None and chat.last.stats is not None:
        lines.insert(0, stats_block(chat.last.stats, chat.last.finish_reason))
    chat.tell("stats", "\n".join(lines))


def _clear(chat: Chat, _argument: str) -> None:
    turns = count_of(len(chat.conversation.turns), "question")
    chat.change(chat.conversation.cleared())
    kept = count_of(len(chat.conversation.documents), "document")
    chat.tell("clear", f"{turns} forgotten, with the answers; {kept} kept")


def _session(chat: Chat, _argument: str) -> None:
    said, context = chat.conversation, chat.model.room.context_tokens
    where = (
        f"session {chat.keeping.name}: {chat.keeping.path}"
        if chat.keeping.name
        else "not kept; /fork NAME keeps it from now on"
    )
    names = ", ".join(document.name for document in said.documents) or "none"
    lines = [
        where,
        f"  turns      {len(said.turns)}" + _left_out(said.left_out, said.summary),
        f"  documents  {names}",
        f"  context    {context_use(chat.used_tokens(), context)}, --on-overflow {chat.overflow}",
    ]
    chat.tell("session", "\n".join(lines))


def _fork(chat: Chat, argument: str) -> None:
    chat.keeping.fork(argument, chat.conversation, chat.used_tokens())
    chat.tell("fork", f"goes on in session {chat.keeping.name}: {chat.keeping.path}")


def _overflow(chat: Chat, argument: str) -> None:
    if argument not in MODES:
        raise RequestError(f"/overflow {argument[:80]}: choose {' or '.join(MODES)}")
    chat.overflow = argument
    chat.tell("overflow", f"when the context is full: {argument}")


def _help(chat: Chat, _argument: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"  {command.usage:<{width}}  {command.summary}" for command in COMMANDS.values()]
    lines += [
        "",
        'Alt+Enter begins a new line; so does Enter between """ and """. A paste keeps its lines.',
        "Ctrl-C ends the answer, Ctrl-D the chat.",
    ]
    chat.tell("help", "\n".join(lines))


def _exit(chat: Chat, _argument: str) -> None:
    chat.ended = True


def _left_out(turns: int, summary: str | None) -> str:
    if not turns:
        return ""
    instead = "" if summary is None else ", but a summary"
    return f", of which the model no longer gets the {turns} oldest{instead}"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[: _SHOWN_CHARACTERS - 3]}..."


COMMANDS = {
    "file": Command("/file PATH...", "add files or directories; quotes as in a shell", _file),
    "undo": Command("/undo", "take back the last question and answer", _undo),
    "stats": Command("/stats", "figures of the last answer, and tokens used", _stats),
    "clear": Command("/clear", "forget questions and answers; documents stay", _clear),
    "session": Command("/session", "where the chat is kept and what is in it", _session),
    "fork": Command("/fork NAME", "go on in a new session; this one stays as it is", _fork),
    "overflow": Command(
        f"/overflow {'|'.join(MODES)}", "what happens when the context is full", _overflow
    ),
    "help": Command("/help", "this list", _help),
    "exit": Command("/exit", "leave; so does Ctrl-D", _exit),
}
# What leaves a chat of ollama, and others.
_ALIASES = {"bye": "exit", "quit": "exit"}
