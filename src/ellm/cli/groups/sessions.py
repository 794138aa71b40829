"""`ellm sessions`: the chats that are kept."""

from __future__ import annotations

import dataclasses
import time
from typing import Annotated, Any

import typer

from ellm.cli.chat.conversation import Turn
from ellm.cli.chat.session_file import InvalidSessionError, Session
from ellm.cli.chat.session_store import SessionStore
from ellm.cli.confirm import require_yes
from ellm.cli.console import Console
from ellm.cli.options import JsonOption
from ellm.cli.tables import aligned
from ellm.units import count_of, format_count

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, show, copy and delete the chats that `ellm chat --session NAME` keeps.",
)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of a session.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_sessions(json: JsonOption = False) -> None:
    """List the sessions, the one used last first."""
    console = Console(as_json=json)
    store = SessionStore.default()
    sound: list[tuple[str, Session]] = []
    damaged: list[dict[str, str]] = []
    for name in store.names():
        try:
            sound.append((name, store.read(name)))
        except InvalidSessionError as error:
            damaged.append({"name": name, "error": str(error)})
    sound.sort(key=lambda item: item[1].used_seconds, reverse=True)
    if json:
        rows = [{"name": name, **_summary(session)} for name, session in sound]
        console.result_object({"sessions": rows, "damaged": damaged})
        return
    for item in damaged:
        console.warn(item["error"])
    if sound:
        console.answer("\n".join([*_table(sound), ""]))
    else:
        console.note(f"no sessions in {store.directory}; ellm chat --session NAME begins one")


@app.command("show")
def show_session(name: NameArgument, json: JsonOption = False) -> None:
    """Print what was said in a session."""
    console = Console(as_json=json)
    store = SessionStore.default()
    session = store.read(name)
    if json:
        console.result_object({"name": name, **dataclasses.asdict(session)})
        return
    said = session.conversation
    console.note(f"{store.path(name)}: {session.model_file}, {_used(session)}")
    if said.system is not None:
        console.answer(f"system: {said.system}\n\n")
    for number, turn in enumerate(said.turns):
        if number == said.left_out and number:
            console.answer(f"--- the model gets what follows{_instead(said.summary)} ---\n\n")
        _show_turn(console, turn)
    for document in said.waiting:
        console.answer(f"+ {document.name}, {count_of(len(document.text), 'character')}\n")


@app.command("fork")
def fork_session(
    name: NameArgument,
    new: Annotated[str, typer.Argument(metavar="NEW", help="Name of the copy.")],
) -> None:
    """Copy a session; both go on from there."""
    store = SessionStore.default()
    store.fork(name, new)
    Console().note(f"{store.path(new)}: a copy of {name}")


@app.command("delete")
def delete_sessions(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names of sessions.")],
    yes: YesOption = False,
) -> None:
    """Delete sessions.

    What was read for them stays in the cache, see `ellm cache`.
    """
    store = SessionStore.default()
    require_yes(f"delete {', '.join(str(store.path(name)) for name in names)}?", yes=yes)
    for name in names:
        store.delete(name)
        Console().note(f"{name} is deleted")


def _table(sessions: list[tuple[str, Session]]) -> list[str]:
    head = ("session", "model", "questions", "documents", "tokens", "last used")
    rows = [
        (
            name,
            session.model_file,
            format_count(len(session.conversation.turns)),
            format_count(len(session.conversation.documents)),
            format_count(session.tokens),
            _used(session),
        )
        for name, session in sessions
    ]
    return aligned([head, *rows])


def _summary(session: Session) -> dict[str, Any]:
    said = session.conversation
    return {
        "model": session.model,
        "model_file": session.model_file,
        "turns": len(said.turns),
        "documents": [document.name for document in said.documents],
        "tokens": session.tokens,
        "created_seconds": session.created_seconds,
        "used_seconds": session.used_seconds,
    }


def _show_turn(console: Console, turn: Turn) -> None:
    for document in turn.documents:
        console.answer(f"+ {document.name}, {count_of(len(document.text), 'character')}\n")
    stopped = " (stopped)" if turn.finish_reason == "abort" else ""
    console.answer(f">>> {turn.question}\n{turn.answer.rstrip()}{stopped}\n\n")


def _instead(summary: str | None) -> str:
    return "" if summary is None else f", and this of what came before: {summary}"


def _used(session: Session) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(session.used_seconds))
