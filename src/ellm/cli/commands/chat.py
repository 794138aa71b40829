"""`ellm chat`: a conversation about files and directories."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ellm.cli import backend
from ellm.cli.chat.adding import adding_new, pack, require_documents_fit
from ellm.cli.chat.conversation import Conversation
from ellm.cli.chat.keeping import Keeping
from ellm.cli.chat.loop import talk
from ellm.cli.chat.model import EngineModel, room_of
from ellm.cli.chat.overflow import MODES
from ellm.cli.chat.reading import ChatInput, PipeInput
from ellm.cli.chat.session_store import OpenSession, SessionStore
from ellm.cli.chat.talk import Chat
from ellm.cli.console import Console
from ellm.cli.generation import tell_uncalibrated
from ellm.cli.options import GenerationOptions, takes_options
from ellm.cli.prompts import plan_context
from ellm.errors import RequestError
from ellm.units import count_of, format_count


def _overflow_mode(value: str) -> str:
    if value not in MODES:
        raise typer.BadParameter(f"{value!r} is unknown, allowed is {' or '.join(MODES)}")
    return value


@takes_options(GenerationOptions)
def chat(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Files and directories to talk about."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session", metavar="NAME", help="Keep the chat under this name, or go on with it."
        ),
    ] = None,
    on_overflow: Annotated[
        str,
        typer.Option(
            "--on-overflow",
            metavar="MODE",
            help="When the context is full: error, drop-oldest (the model no longer gets the "
            "oldest questions and answers) or summarise (it gets a summary of them).",
            callback=_overflow_mode,
        ),
    ] = "error",
    *,
    options: GenerationOptions,
) -> None:
    """Talk about files and directories; /help lists what can be typed besides messages.

    The context is -c, or the model's as far as memory allows; an answer has up to 1,024 tokens
    without -n. From a pipe each line is a message, or all lines from one that begins with three
    quotes to one that ends with three.
    """
    console = Console(quiet=options.quiet, as_json=options.json)
    store = SessionStore.default()
    with ExitStack() as stack:
        opened = None if session is None else stack.enter_context(store.open(session))
        before, options = _begin(console, opened, options)
        conversation = adding_new(console, before, pack(console, paths)) if paths else before
        path = backend.find_model(options.model, console)
        if opened and opened.found and opened.found.model_file != path.name:
            console.note(f"another model than last time: {path.name} reads all of it anew")
        keeping = Keeping(store, opened, model=options.model, model_file=path.name)
        stack.callback(keeping.close)
        chat = Chat(
            console,
            _load(stack, console, path, conversation, options),
            keeping,
            before,
            overflow=on_overflow,
            with_figures=not options.no_stats,
            model_name=path.name,
        )
        if conversation != before:
            chat.change(conversation)
        source = _source(console)
        _greet(console, chat, source, path.name)
        talk(chat, source)


def _begin(
    console: Console, opened: OpenSession | None, options: GenerationOptions
) -> tuple[Conversation, GenerationOptions]:
    """Return what was said so far, and the options with what the session adds to them."""
    found = opened.found if opened else None
    if opened is None or found is None:
        return Conversation(options.system), options
    said = found.conversation
    turns = count_of(len(said.turns), "question")
    documents = count_of(len(said.documents), "document")
    console.note(f"session {opened.name} goes on: {turns}, {documents} so far")
    if options.system is not None and options.system != said.system:
        console.note("another system message than last time: all of it is read anew")
        said = replace(said, system=options.system)
    return said, replace(options, model=options.model or found.model)


def _load(
    stack: ExitStack,
    console: Console,
    path: Path,
    conversation: Conversation,
    options: GenerationOptions,
) -> EngineModel:
    """Return the model; what cannot work is refused before its weights are loaded."""
    model = backend.open_text(path)
    if not model.tokenizer.has_chat_template:
        raise RequestError(
            "a chat needs a model with a chat template, this has none: `ellm ask` and `ellm run` "
            "work with it"
        )
    # Refuses -c and -n that no prompt fits beside.
    plan_context(
        1,
        context_length=model.context_length,
        context_tokens=options.context_tokens,
        max_tokens=options.max_tokens,
        default_max_tokens=1,
    )
    context_tokens = options.context_tokens or model.context_length
    room = room_of(context_tokens, options.max_tokens)
    require_documents_fit(model.tokenizer, conversation, room)
    engine = stack.enter_context(
        backend.load_engine(model.source, options, options.context_tokens, console)
    )
    tell_uncalibrated(console, options, engine)
    loaded = EngineModel(console, engine, options)
    if loaded.room != room:
        require_documents_fit(model.tokenizer, conversation, loaded.room)
    return loaded


def _source(console: Console) -> ChatInput:
    if not sys.stdin.isatty():
        return PipeInput(sys.stdin.buffer)
    # Not at the top: the editor takes a third of a second, which a pipe need not wait for.
    from ellm.cli.chat.terminal import TerminalInput, history_file

    return TerminalInput(console.note, history=history_file())


def _greet(console: Console, chat: Chat, source: ChatInput, model_name: str) -> None:
    context = f"{format_count(chat.model.room.context_tokens)} tokens of context"
    used = chat.used_tokens()
    if used:
        context += f", {format_count(used)} used"
    hint = "; /help lists the commands, Ctrl-D leaves" if source.interactive else ""
    console.note(f"{model_name}: {context}{hint}")
