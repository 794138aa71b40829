"""`ellm run`: continues a prompt."""

from __future__ import annotations

from typing import Annotated

import typer

from ellm.cli.backend import ModelText
from ellm.cli.console import Console
from ellm.cli.generation import answer_prompt
from ellm.cli.options import GenerationOptions, takes_options
from ellm.cli.prompt_source import read_prompt
from ellm.cli.prompts import plain_prompt

DEFAULT_MAX_TOKENS = 256


@takes_options(GenerationOptions)
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

    def make_prompt(model: ModelText) -> list[int]:
        return plain_prompt(
            model.tokenizer,
            text,
            chat=chat,
            system=options.system,
            context_length=model.context_length,
        )

    answer_prompt(console, options, make_prompt, default_max_tokens=DEFAULT_MAX_TOKENS)
