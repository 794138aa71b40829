"""Entry point of the command line: runs a command and turns what ends it into an exit status."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE, what a shell reports of `cat` in the same place


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status.

    0 is success, 2 a wrong command line, 130 Ctrl-C; `EllmError.exit_code` has the others.

    Args:
        arguments: Words of the command line without the program's name; None takes `sys.argv`.
    """
    try:
        status = _run(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
        _say("\nellm: interrupted")
    except BrokenPipeError:
        status = EXIT_BROKEN_PIPE
        _discard_stdout()
    if status and threading.active_count() > 1:
        _leave_now(status)
    return status


def _run(arguments: list[str]) -> int:
    # Imported here so that Ctrl-C during the imports ends without a traceback, too.
    from typer.exceptions import Exit, TyperException
    from typer.main import get_command

    from ellm.cli.app import app
    from ellm.errors import EllmError

    command = get_command(app)
    # Not `app()`: that turns Ctrl-C and a broken pipe into exit statuses of its own.
    try:
        with command.make_context("ellm", arguments, obj=("ellm", *arguments)) as context:
            command.invoke(context)
    except EllmError as error:
        _say(f"ellm: {error}")
        return error.exit_code
    except TyperException as error:
        _say_usage(error)
        return error.exit_code
    except Exit as request:
        return request.exit_code
    return 0


def _say_usage(error: Exception) -> None:
    show = getattr(error, "show", None)  # click's errors show usage and hint; others are bare
    if show is None:
        _say(f"ellm: {error}")
    else:
        show()


def _say(message: str) -> None:
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        return  # nobody reads standard error


def _discard_stdout() -> None:
    """Let the interpreter's own flush at exit find somewhere to write."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _leave_now(status: int) -> None:
    """Exit without waiting for a thread that is still inside the native core."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()
    os._exit(status)
