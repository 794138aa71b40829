"""`ellm ask`: a question about files and directories."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ellm.cli.backend import ModelText
from ellm.cli.console import Console
from ellm.cli.documents import STANDARD_INPUT, Packing
from ellm.cli.generation import answer_prompt
from ellm.cli.options import GenerationOptions, takes_options
from ellm.cli.packing import pack_and_tell
from ellm.cli.prompt_source import read_prompt
from ellm.cli.prompts import BASE_MODEL_STOP, question_prompt
from ellm.cli.trace_file import TraceFile

DEFAULT_MAX_TOKENS = 512


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
    packing = pack_and_tell(console, paths, sys.stdin.buffer if STANDARD_INPUT in paths else None)

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


def _packing_values(packing: Packing) -> dict[str, Any]:
    return {
        "documents": [document.name for document in packing.documents],
        "skipped": [{"name": item.name, "reason": item.reason} for item in packing.skipped],
    }
