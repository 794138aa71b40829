"""`ellm pull`: fetches a model."""

from __future__ import annotations

from typing import Annotated

import typer

from ellm.cli.console import Console
from ellm.cli.options import JsonOption, QuietOption
from ellm.units import format_bytes


def pull(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Built-in name or Hugging Face org/repo[:quant].",
            show_default="smollm2-135m",
        ),
    ] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Fetch a model, or check the one that is there; prints its path."""
    from ellm import hub

    console = Console(quiet=quiet, as_json=json)
    line = console.progress(f"fetching {model or 'the default model'}")

    def progress(done_bytes: int, total_bytes: int) -> None:
        detail = f"{format_bytes(done_bytes)} of {format_bytes(total_bytes)}"
        line.update(done_bytes, total_bytes, detail)

    try:
        pulled = hub.pull(model, progress)
    finally:
        line.clear()
    nbytes = pulled.path.stat().st_size
    if json:
        console.result_object(
            {"path": str(pulled.path), "source": pulled.source, "size_bytes": nbytes}
        )
        return
    origin = "was already here" if pulled.source == "disk" else f"came from the {pulled.source}"
    console.note(f"{format_bytes(nbytes)}, {origin}")
    console.result(str(pulled.path))
