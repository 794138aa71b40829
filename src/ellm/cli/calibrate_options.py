"""The options of `ellm calibrate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from ellm.calibration.plan import (
    BLOCK_TOKENS,
    DEFAULT_LENGTH_TOKENS,
    DEFAULT_MAX_KL,
    DEFAULT_TAIL_TOKENS,
    LEAST_LENGTH_TOKENS,
    LEAST_TAIL_TOKENS,
    MAX_LENGTH_TOKENS,
    MAX_TAIL_TOKENS,
    MOST_MAX_KL,
    PIECE_TOKENS,
    PROBE_CONTEXT_TOKENS,
    CalibrationPlan,
)
from ellm.cli import checks
from ellm.cli.json_file import file_of
from ellm.cli.options import FiguresFileOption, ModelArgument, QuietOption, ThreadsOption
from ellm.config.engine import EngineConfig
from ellm.errors import ConfigError
from ellm.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """What the user chose; the fields' annotations are the command line."""

    model: ModelArgument = None
    max_kl: Annotated[
        float | None,
        typer.Option(
            "--max-kl",
            help="Mean KL divergence from exact attention to stay under, in nats.",
            callback=checks.within(0.0, MOST_MAX_KL, above=True),
            show_default=f"{DEFAULT_MAX_KL:g}",
        ),
    ] = None
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            metavar="TOKENS",
            help="Depth that texts are read to, cut to a multiple of 64.",
            callback=checks.within(LEAST_LENGTH_TOKENS, MAX_LENGTH_TOKENS),
            show_default=f"{DEFAULT_LENGTH_TOKENS}, or what the model's context has room for",
        ),
    ] = None
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail",
            metavar="TOKENS",
            help="Tokens that are fed one by one after a text, to compare predictions.",
            callback=checks.within(LEAST_TAIL_TOKENS, MAX_TAIL_TOKENS),
            show_default=str(DEFAULT_TAIL_TOKENS),
        ),
    ] = None
    text: Annotated[
        list[Path],
        typer.Option(
            "--text",
            metavar="FILE",
            help="Text to learn from in its first half and to check on in its second, in place of "
            "licences and Python's sources; may be repeated.",
        ),
    ] = field(default_factory=list)
    threads: ThreadsOption = None
    shallow: Annotated[
        bool,
        typer.Option(
            "--shallow",
            help="Instead, find out in about a minute whether drafts from the model's own first "
            "layers pay (`--speculation shallow`).",
        ),
    ] = False
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew where an earlier run was stopped.")
    ] = False
    show: Annotated[
        bool, typer.Option("--show", help="Print what an earlier run found, and run nothing.")
    ] = False
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete what an earlier run found, and run nothing.")
    ] = False
    json: FiguresFileOption = None
    quiet: QuietOption = False

    def __post_init__(self) -> None:
        """Check what options say of each other.

        Raises:
            ConfigError: An option would have no effect.
        """
        if self.show and self.forget:
            raise ConfigError("--show and --forget: what is to be shown would be deleted")
        running = ("max_kl", "length", "tail", "text", "threads", "fresh")
        self._refuse_idle("--show", self.show, running)
        self._refuse_idle("--forget", self.forget, (*running, "json"))
        self._refuse_idle("--shallow", self.shallow, ("max_kl", "length", "tail", "fresh"))

    @property
    def json_path(self) -> Path | None:
        """The file for the figures, if there is to be one."""
        return file_of(self.json)

    def plan(self, context_length: int) -> CalibrationPlan:
        """Return what to run on a model of this context in tokens.

        Raises:
            ConfigError: The length and its tail are more than the context, or the context is too
                short for any.
        """
        tail = DEFAULT_TAIL_TOKENS if self.tail is None else self.tail
        longest = (context_length - tail) // BLOCK_TOKENS * BLOCK_TOKENS
        if longest < LEAST_LENGTH_TOKENS:
            raise ConfigError(
                f"this model's context of {format_count(context_length)} tokens is too short to "
                f"calibrate: {format_count(LEAST_LENGTH_TOKENS)} and a tail of {tail} are needed"
            )
        asked = min(DEFAULT_LENGTH_TOKENS, longest) if self.length is None else self.length
        length = asked // BLOCK_TOKENS * BLOCK_TOKENS
        if length > longest:
            raise ConfigError(
                f"--length {format_count(length)} and a tail of {tail} tokens are more than this "
                f"model's context of {format_count(context_length)} tokens; the greatest that fits "
                f"is {format_count(longest)}"
            )
        return CalibrationPlan(
            length_tokens=length,
            tail_tokens=tail,
            max_kl=DEFAULT_MAX_KL if self.max_kl is None else self.max_kl,
        )

    def engine_config(self, plan: CalibrationPlan) -> EngineConfig:
        """Return how to load a model for a plan: with int8 KV, which alone can be read in part."""
        return EngineConfig(threads=self.threads, context_tokens=plan.context_tokens)

    def probe_config(self, context_length: int) -> EngineConfig:
        """Return how to load a model of this context in tokens for `--shallow`.

        Raises:
            ConfigError: The context has no room for a piece of text.
        """
        if context_length < PIECE_TOKENS:
            raise ConfigError(
                f"this model's context of {format_count(context_length)} tokens is too short to "
                f"fit an exit: {format_count(PIECE_TOKENS)} are needed"
            )
        context_tokens = min(PROBE_CONTEXT_TOKENS, context_length)
        return EngineConfig(threads=self.threads, context_tokens=context_tokens)

    def _refuse_idle(self, switch: str, on: bool, names: tuple[str, ...]) -> None:
        """Refuse options that have no effect beside a switch."""
        for name in names:
            if on and getattr(self, name) not in (None, [], False):
                raise ConfigError(f"--{name.replace('_', '-')} has no effect with {switch}")
