"""`ellm ask`: a question about files and directories."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from ellm.cli.backend import ModelText
from ellm.cli.console import Console
from ellm.cli.documents import STANDARD_INPUT, Packing, Skipped, pack_documents
from ellm.cli.generation import answer_prompt
from ellm.cli.options import GenerationOptions, takes_options
from ellm.cli.prompt_source import read_prompt
from ellm.cli.prompts import BASE_MODEL_STOP, question_prompt
from ellm.cli.trace_file import TraceFile
from ellm.errors import RequestError
from ellm.units import count_of

DEFAULT_MAX_TOKENS = 512
_SHOWN_NAMES = 3


@takes_options(GenerationOptions)
def ask(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Files and directories to read; - is standard input."),
    ],
    prompt: Annotated[
        str | None,
        typer.Option("-p", "--prompt", help="The question; - reads it from standard input."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE.html",
            help="Write a page that shows which parts of the documents each layer read.",
        ),
    ] = None,
    *,
    options: GenerationOptions,
) -> None:
    """Answer a question about files and directories.

    Text and source are read; binary, hidden and ignored files are left out. The documents come
    first in the prompt and the question last.
    """
    console = Console(quiet=options.quiet, as_json=options.json)
    if prompt in (None, STANDARD_INPUT) and STANDARD_INPUT in paths:
        raise typer.BadParameter("standard input cannot be a document and the question, too")
    question = read_prompt(prompt, what="question").strip()
    page = None
    if trace is not None:
        page = TraceFile(path=trace, question=question, model=options.model or "smollm2-135m")
        page.check(kv_type=options.kv_type)
    packing = _pack(console, paths)

    def make_prompt(model: ModelText) -> list[int]:
        return question_prompt(
            model.tokenizer,
            packing.documents,
            question,
            system=options.system,
            context_length=model.context_length,
        )

    answer_prompt(
        console,
        options,
        make_prompt,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        stop_without_template=(BASE_MODEL_STOP,),
        extra=_packing_values(packing),
        trace=page,
    )


def _pack(console: Console, paths: list[str]) -> Packing:
    packing = pack_documents(paths, sys.stdin.buffer if STANDARD_INPUT in paths else None)
    _tell_packing(console, packing)
    if not packing.documents:
        raise RequestError(f"nothing to read in {', '.join(paths)}: {_reasons(packing.skipped)}")
    return packing


def _tell_packing(console: Console, packing: Packing) -> None:
    for item in packing.skipped:
        if item.asked_for:
            console.warn(f"{item.name} was not read: {item.reason}")
    for document in packing.documents:
        encoding = f" (read as {document.encoding})" if document.encoding else ""
        console.note(f"+ {document.name}{encoding}, {count_of(len(document.text), 'character')}")
    found = [item for item in packing.skipped if not item.asked_for]
    if found:
        console.note(f"- {count_of(len(found), 'entry', 'entries')} skipped: {_reasons(found)}")


def _reasons(skipped: list[Skipped]) -> str:
    """Return how often each reason occurred, with the first names."""
    if not skipped:
        return "there is no file"
    told = []
    for reason, count in Counter(item.reason for item in skipped).most_common():
        names = [item.name for item in skipped if item.reason == reason]
        more = ", ..." if count > _SHOWN_NAMES else ""
        told.append(f"{count} {reason} ({', '.join(names[:_SHOWN_NAMES])}{more})")
    return "; ".join(told)


def _packing_values(packing: Packing) -> dict[str, Any]:
    return {
        "documents": [document.name for document in packing.documents],
        "skipped": [{"name": item.name, "reason": item.reason} for item in packing.skipped],
    }
