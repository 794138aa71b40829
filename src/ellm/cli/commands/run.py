"""`ellm run`: continues a prompt."""

from __future__ import annotations

from typing import Annotated

import typer

from ellm.cli import backend
from ellm.cli.console import Console
from ellm.cli.generation import show_answer
from ellm.cli.options import GenerationOptions, takes_generation_options
from ellm.cli.prompt_source import read_prompt
from ellm.cli.prompts import plain_prompt, plan_context

DEFAULT_MAX_TOKENS = 256


@takes_generation_options
def run(
    prompt: Annotated[
        str | None,
        typer.Option("-p", "--prompt", help="The text to continue; - reads standard input."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")
    ] = False,
    *,
    options: GenerationOptions,
) -> None:
    """Continue a prompt; with --chat or --system, answer it.

    Without -p the prompt is read from standard input.
    """
    console = Console(quiet=options.quiet, as_json=options.json)
    text = read_prompt(prompt)
    path = backend.find_model(options.model, console)
    model = backend.open_text(path)
    tokens = plain_prompt(
        model.tokenizer,
        text,
        chat=chat,
        system=options.system,
        context_length=model.context_length,
    )
    plan = plan_context(
        len(tokens),
        context_length=model.context_length,
        context_tokens=options.context_tokens,
        max_tokens=options.max_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
    )
    with backend.load_engine(path, options, plan.context_tokens, console) as engine:
        show_answer(
            console,
            engine,
            tokens,
            options.sampling_params(plan.max_tokens),
            with_stats=not options.no_stats,
            extra={"model": path.name},
        )
