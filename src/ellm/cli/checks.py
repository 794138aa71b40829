"""Checks of option values, for messages that name the option and what it allows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection
from typing import TypeVar

import typer

from ellm.config.attention import ATTENTION_MODES
from ellm.config.engine import KV_TYPES
from ellm.config.sampling import MAX_LOGIT_BIAS_ENTRIES, MAX_STOP_STRING_BYTES, MAX_STOP_STRINGS
from ellm.config.speculation import SPECULATION_MODES

Number = TypeVar("Number", int, float)


def within(
    minimum: Number, maximum: Number, *, above: bool = False
) -> Callable[[Number | None], Number | None]:
    """Return a check that a number lies in minimum..maximum; with `above`, minimum is refused."""
    allowed = f"{'above ' if above else ''}{minimum:g} to {maximum:g}"
    if isinstance(minimum, int) and isinstance(maximum, int):
        allowed = f"{minimum} to {maximum}"

    def check(value: Number | None) -> Number | None:
        if value is None:
            return None
        # NaN fails the comparison.
        if not minimum <= value <= maximum or (above and value == minimum):
            raise typer.BadParameter(f"{value} is out of range, allowed is {allowed}")
        return value

    return check


def integers(minimum: int, maximum: int) -> Callable[[list[str] | None], list[str] | None]:
    """Return a check of lists of whole numbers in minimum..maximum; `parse_integers` reads them."""

    def check(values: list[str] | None) -> list[str] | None:
        for word in _words(values):
            # Ten digits hold every int32, and int() refuses thousands with a message of its own.
            if not re.fullmatch(r"[0-9]{1,10}", word) or not minimum <= int(word) <= maximum:
                raise typer.BadParameter(
                    f"{word!r} is not a whole number from {minimum} to {maximum}"
                )
        return values

    return check


def parse_integers(values: list[str]) -> tuple[int, ...]:
    """Return the numbers of lists such as "512,4096", ascending and each once."""
    return tuple(sorted({int(word) for word in _words(values)}))


def names(noun: str, known: Collection[str]) -> Callable[[list[str] | None], list[str] | None]:
    """Return a check of lists of known names; `parse_names` reads them."""

    def check(values: list[str] | None) -> list[str] | None:
        for word in _words(values):
            if word not in known:
                close = difflib.get_close_matches(word.lower(), known, n=3, cutoff=0.5)
                meant = f"did you mean {' or '.join(close)}? " if close else ""
                raise typer.BadParameter(
                    f"{word[:80]!r} is no {noun}; {meant}known are {', '.join(known)}"
                )
        return values

    return check


def parse_names(values: list[str]) -> tuple[str, ...]:
    """Return the names of lists such as "bounded,sparse", in their order and each once."""
    return tuple(dict.fromkeys(_words(values)))


def kv_type(value: str | None) -> str | None:
    """Check the name of a KV storage type."""
    if value is not None and value not in KV_TYPES:
        raise typer.BadParameter(f"{value!r} is unknown, allowed is {' or '.join(KV_TYPES)}")
    return value


def attention_mode(value: str) -> str:
    """Check the name of an attention mode."""
    if value not in ATTENTION_MODES:
        raise typer.BadParameter(f"{value!r} is unknown, allowed is {' or '.join(ATTENTION_MODES)}")
    return value


def speculation_mode(value: str) -> str:
    """Check the name of a source of guesses."""
    if value not in SPECULATION_MODES:
        raise typer.BadParameter(
            f"{value!r} is unknown, allowed is {' or '.join(SPECULATION_MODES)}"
        )
    return value


def stop_strings(values: list[str] | None) -> list[str] | None:
    """Check the stop strings."""
    for value in values or ():
        if not value or len(value.encode("utf-8", "surrogatepass")) > MAX_STOP_STRING_BYTES:
            raise typer.BadParameter(
                f"a stop string has {len(value)} characters, allowed is 1 to "
                f"{MAX_STOP_STRING_BYTES} bytes"
            )
    if values and len(values) > MAX_STOP_STRINGS:
        raise typer.BadParameter(f"{len(values)} stop strings, allowed are {MAX_STOP_STRINGS}")
    return values


def logit_bias(values: list[str] | None) -> list[str] | None:
    """Check the entries `ID=VALUE`; `parse_logit_bias` reads them."""
    if values and len(values) > MAX_LOGIT_BIAS_ENTRIES:
        raise typer.BadParameter(f"{len(values)} entries, allowed are {MAX_LOGIT_BIAS_ENTRIES}")
    parse_logit_bias(values or [])
    return values


def parse_logit_bias(values: list[str]) -> dict[int, float]:
    """Return token id to bias from `ID=VALUE` entries."""
    biases = {}
    for entry in values:
        token, equals, bias = entry.partition("=")
        try:
            key, value = int(token), float(bias)
        except ValueError:
            key, value = -1, 0.0
        if not equals or not 0 <= key < 2**31 or not -100 <= value <= 100:
            raise typer.BadParameter(
                f"{entry!r} is not ID=VALUE with a token id and a bias from -100 to 100"
            )
        biases[key] = value
    return biases


def _words(values: list[str] | None) -> list[str]:
    return re.split(r"\s*,\s*|\s+", ",".join(values).strip()) if values else []
