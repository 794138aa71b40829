"""Asks before something is deleted."""

from __future__ import annotations

import sys

import typer


def require_yes(question: str, *, yes: bool) -> None:
    """Go on if the user wants to; with `yes` that was said on the command line.

    Raises:
        typer.BadParameter: Nobody can be asked.
        typer.Exit: The answer is no.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise typer.BadParameter("nobody can be asked: give --yes", param_hint="'--yes'")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise typer.Exit(1)
