"""Describes the public API in text: what a program that uses eLLM can rely on.

Usage, after a change that is meant:
    python -m tests.architecture.public_api > tests/architecture/public_api.txt
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import ellm

SNAPSHOT = Path(__file__).with_suffix(".txt")


def describe() -> str:
    """Return every public name with its signatures, one a line."""
    return "\n".join(line for name in ellm.__all__ for line in _describe(name)) + "\n"


def _describe(name: str) -> Iterator[str]:
    value = getattr(ellm, name)
    if not inspect.isclass(value):
        yield f"{name}: {type(value).__name__}"
        return
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    yield f"class {name}{f'({bases})' if bases else ''}"
    if inspect.isfunction(value.__init__):
        yield f"    __init__{_signature(value.__init__)}"
    for member, found in sorted(vars(value).items()):
        # A slot is a field, which the constructor shows.
        if not member.startswith("_") and not inspect.ismemberdescriptor(found):
            yield f"    {member}{_member(found)}"


def _member(found: object) -> str:
    if isinstance(found, property) and found.fget is not None:
        return f": {inspect.signature(found.fget).return_annotation}"
    function = getattr(found, "__func__", found)  # of a class method
    return _signature(function) if inspect.isfunction(function) else f" = {found!r}"


def _signature(function: Callable[..., object]) -> str:
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(function)))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


if __name__ == "__main__":
    print(describe(), end="")
