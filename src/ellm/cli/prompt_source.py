"""Where the text of a prompt comes from: the option or standard input."""

from __future__ import annotations

import sys

import typer

from ellm.cli.documents import MAX_FILE_BYTES, STANDARD_INPUT
from ellm.cli.text_files import NotTextError, decode_text
from ellm.errors import ConfigError
from ellm.units import format_bytes


def read_prompt(option: str | None, *, what: str = "prompt") -> str:
    """Return the prompt: the option's text, or standard input for "-" or when it is piped.

    Args:
        option: What `-p` holds.
        what: What to call it in messages.

    Raises:
        typer.BadParameter: There is no prompt, or it is blank.
        ConfigError: Standard input is no text, or too large.
    """
    if option is None and (sys.stdin is None or sys.stdin.isatty()):
        raise typer.BadParameter(f"missing: give the {what}, or - to read it", param_hint="'-p'")
    text = _standard_input(what) if option is None or option == STANDARD_INPUT else option
    if not text.strip():
        raise typer.BadParameter(f"the {what} is empty", param_hint="'-p'")
    return text


def _standard_input(what: str) -> str:
    data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(
            f"the {what} on standard input is larger than {format_bytes(MAX_FILE_BYTES)}"
        )
    try:
        return decode_text(data).text
    except NotTextError as error:
        raise ConfigError(f"the {what} on standard input is no text: {error}") from error
