"""Writes docs/cli.md: what `ellm` and each of its commands print for --help.

Usage: python docs/make_cli.py
"""

from __future__ import annotations

from pathlib import Path

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
| `ELLM_MODELS` | a directory that is searched for models first |
| `ELLM_ISA` | `scalar`, `avx2` or `avx512`: which kernels to use, instead of the fastest |
| `HF_ENDPOINT`, `HF_TOKEN` | another Hugging Face server; access to private repositories |
"""


def page() -> str:
    """Return the page."""
    group = get_group(app)
    with group.make_context("ellm", [], resilient_parsing=True, terminal_width=WIDTH) as context:
        parts = [_HEAD, _section("ellm", group.get_help(context))]
        for name, command in group.commands.items():
            with command.make_context(
                name, [], parent=context, resilient_parsing=True, terminal_width=WIDTH
            ) as inner:
                parts.append(_section(f"ellm {name}", command.get_help(inner)))
    return "\n".join(parts)


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text.rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
