"""Writes docs/cli.md: what `ellm` and each of its commands print for --help.

Usage: python docs/make_cli.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from ellm.cli.app import app

PAGE = Path(__file__).with_name("cli.md")
WIDTH = 96

_HEAD = """\
# The command line

The texts below are what `ellm --help` and `ellm COMMAND --help` print; `python docs/make_cli.py`
writes this page and `make check` compares it.

A model is named by a path, by a name that `ellm list` shows, or by a Hugging Face
`org/repo[:quant]`; without `-m` it is the default model. The answer goes to standard output,
everything else to standard error.

| exit status | meaning |
|---|---|
| 0 | success |
| 1 | the request failed, as the message says |
| 2 | wrong command line or option value |
| 3 | the model was not found or could not be fetched |
| 4 | the model file is damaged, or uses something that is not implemented |
| 5 | it does not fit: context, memory or disk |
| 130 | Ctrl-C |
| 141 | the reader of standard output left |

| environment variable | meaning |
|---|---|
| `ELLM_CACHE` | where models and repacked weights are kept, instead of `~/.cache/ellm` |
| `ELLM_KV_CACHE` | where what was read is kept, instead of `~/.cache/ellm/kv` |
| `XDG_DATA_HOME` | chats are kept in `$XDG_DATA_HOME/ellm`, instead of `~/.local/share/ellm` |
| `XDG_STATE_HOME` | likewise what was typed into chats, instead of `~/.local/state/ellm` |
| `ELLM_MODELS` | a directory that is searched for models first |
| `ELLM_ISA` | `scalar`, `avx2` or `avx512`: which kernels to use, instead of the fastest |
| `HF_ENDPOINT`, `HF_TOKEN` | another Hugging Face server; access to private repositories |
"""


def page() -> str:
    """Return the page."""
    group = get_group(app)
    with group.make_context("ellm", [], resilient_parsing=True, terminal_width=WIDTH) as context:
        return "\n".join([_HEAD, *_sections("ellm", group, context)])


def _sections(
    name: str, command: TyperCommand | TyperGroup, context: typer.Context
) -> Iterator[str]:
    """Yield what a command prints for --help, then the same for the commands it has."""
    yield _section(name, command.get_help(context))
    if not isinstance(command, TyperGroup):
        return
    for word, inner in command.commands.items():
        with inner.make_context(
            word, [], parent=context, resilient_parsing=True, terminal_width=WIDTH
        ) as inside:
            yield from _sections(f"{name} {word}", inner, inside)


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text.rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
