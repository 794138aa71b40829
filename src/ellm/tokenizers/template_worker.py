"""The process in which chat templates run: they are programs by strangers, so they get limits.

Run by path as a script, never imported: it must start fast and hold nothing worth stealing, so it
imports only Jinja and the standard library. It reads and writes frames of four bytes of length and
a JSON value; the first frame it writes says that it is ready.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, BinaryIO

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_BYTES = 512 << 20
# The parent stops a slow template by the clock; this ends one whose parent has died.
CPU_SECONDS = 3
MAX_LITERALS = 512
MAX_LITERAL_CHARS = 64
MAX_ERROR_CHARS = 500
MAX_DATE_FORMAT_CHARS = 256


class OutputLimitError(Exception):
    """The template wrote more than it may."""


class GenerationTag(Extension):
    """Accepts `{% generation %}`, with which templates mark the assistant's words for training."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are Jinja's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body as if the tag were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates call it so
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Write JSON without Jinja's HTML escapes, as `transformers` does."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def raise_exception(message: str) -> None:
    """Let a template refuse its input."""
    raise jinja2.exceptions.TemplateError(message)


def strftime_now(date_format: str) -> str:
    """Return the local time in `date_format`."""
    if len(date_format) > MAX_DATE_FORMAT_CHARS:
        raise jinja2.exceptions.TemplateError("the date format is too long")
    return datetime.now().astimezone().strftime(date_format)


def make_environment() -> ImmutableSandboxedEnvironment:
    """Return an environment like that of `transformers` chat templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", GenerationTag],
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def string_literals(environment: jinja2.Environment, source: str) -> list[str]:
    """Return the strings a template holds and may compare text with, longest first."""
    found = {
        node.value
        for node in environment.parse(source).find_all(nodes.Const)
        if isinstance(node.value, str) and 0 < len(node.value) <= MAX_LITERAL_CHARS
    }
    return sorted(found, key=lambda text: (-len(text), text))[:MAX_LITERALS]


class Renderer:
    """Holds the one template of this process."""

    def __init__(self) -> None:
        """Start without a template."""
        self._environment = make_environment()
        self._template: jinja2.Template | None = None

    def answer(self, request: dict[str, Any]) -> object:
        """Do what one frame asks for."""
        if "source" in request:
            self._template = self._environment.from_string(request["source"])
            return string_literals(self._environment, request["source"])
        return self._render(request["variables"], request["limit"])

    def _render(self, variables: dict[str, Any], limit: int) -> str:
        if self._template is None:
            raise jinja2.exceptions.TemplateError("no template was sent")
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(**variables):
            size += len(piece)
            if size > limit:
                raise OutputLimitError
            pieces.append(piece)
        return "".join(pieces)


def describe(error: BaseException) -> str:
    """Say what went wrong in a few words."""
    if isinstance(error, OutputLimitError):
        return "it wrote more than four times its input"
    if isinstance(error, MemoryError):
        return f"it needed more than {MEMORY_BYTES >> 20} MiB of memory"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    line = getattr(error, "lineno", None)
    where = f" in line {line}" if isinstance(line, int) else ""
    return f"{type(error).__name__}{where}: {str(error)[:MAX_ERROR_CHARS]}"


def reply_to(answer: Callable[[dict[str, Any]], object], data: bytes) -> bytes:
    """Return the reply to one request; a template's failure is a reply, too.

    "spent" says that the process has run short of memory and should be replaced.
    """
    try:
        return json.dumps({"result": answer(json.loads(data))}, ensure_ascii=False).encode()
    except Exception as error:  # noqa: BLE001 - whatever a template raises goes to the parent
        reply = {"error": describe(error), "spent": isinstance(error, MemoryError)}
        return json.dumps(reply).encode()


def limit_cpu() -> None:
    """Grant this process `CPU_SECONDS` more from now on."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(usage.ru_utime + usage.ru_stime) + 1 + CPU_SECONDS
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def limit_memory() -> None:
    """Allow `MEMORY_BYTES` of address space beyond what is in use; forbid files and core dumps."""
    with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - pathlib is not imported here
        in_use = int(statm.read().split()[0]) * resource.getpagesize()
    for kind, limit in (
        (resource.RLIMIT_AS, in_use + MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def write_frame(stream: BinaryIO, data: bytes) -> None:
    """Write one frame."""
    stream.write(len(data).to_bytes(4, "big") + data)
    stream.flush()


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the parent closes the pipe."""
    renderer = Renderer()
    limit_memory()
    write_frame(replies, b"{}")
    while len(header := requests.read(4)) == 4:
        data = requests.read(int.from_bytes(header, "big"))
        limit_cpu()
        reply = reply_to(renderer.answer, data)
        del data
        write_frame(replies, reply)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)
