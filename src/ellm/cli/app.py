"""All commands of `ellm`: one line each."""

from __future__ import annotations

from typing import Annotated

import typer

from ellm import __version__
from ellm.cli.commands import ask, bench, calibrate, chat, list_models, pull, quality, run, show
from ellm.cli.groups import cache, sessions

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Answer questions about very long texts on an ordinary CPU.",
)
app.command("ask")(ask.ask)
app.command("run")(run.run)
app.command("chat")(chat.chat)
app.command("pull")(pull.pull)
app.command("list")(list_models.list_models)
app.command("show")(show.show)
app.command("bench")(bench.bench)
app.command("quality")(quality.quality)
app.command("calibrate")(calibrate.calibrate)
app.add_typer(sessions.app, name="sessions")
app.add_typer(cache.app, name="cache")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ellm {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Answer questions about very long texts on an ordinary CPU."""
    del version
