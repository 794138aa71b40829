"""The options of `ellm bench`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from ellm.cli import checks
from ellm.cli.json_file import file_of
from ellm.cli.options import (
    AttentionOption,
    FiguresFileOption,
    KvTypeOption,
    ModelOption,
    NoMmapOption,
    QuietOption,
    RowsPerChunkOption,
    SparseMassOption,
    SparseTopkOption,
    ThreadsOption,
)
from ellm.config.attention import AttentionConfig
from ellm.config.benchmark import MAX_DECODE_STEPS, MAX_ROWS, BenchmarkPlan, room_tokens
from ellm.config.bounds import MAX_TOKENS
from ellm.config.engine import EngineConfig, require_int8
from ellm.errors import ConfigError
from ellm.units import format_count

DEFAULT_DEPTHS_TOKENS = (512, 4096, 16384)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What the user chose; the fields' annotations are the command line."""

    model: ModelOption = None
    depths: Annotated[
        list[str],
        typer.Option(
            "--depths",
            metavar="TOKENS,...",
            help="Numbers of cached tokens to measure at, from 1.",
            callback=checks.integers(1, MAX_TOKENS),
            show_default="512,4096,16384, as far as the model's context goes",
        ),
    ] = field(default_factory=list)
    decode: Annotated[
        int,
        typer.Option(
            "--decode",
            help="Tokens to decode at each depth.",
            callback=checks.within(1, MAX_DECODE_STEPS),
        ),
    ] = 24
    rows: Annotated[
        list[str],
        typer.Option(
            "--rows",
            metavar="ROWS,...",
            help="Numbers of rows to time steps with.",
            callback=checks.integers(1, MAX_ROWS),
            show_default="1,2,3,4,5,6,7,8",
        ),
    ] = field(default_factory=lambda: ["1,2,3,4,5,6,7,8"])
    text: Annotated[
        Path | None,
        typer.Option("--text", metavar="FILE", help="Text to read; random tokens by default."),
    ] = None
    threads: ThreadsOption = None
    rows_per_chunk: RowsPerChunkOption = 512
    kv_type: KvTypeOption = "int8"
    attention: AttentionOption = "exact"
    sparse_mass: SparseMassOption = None
    sparse_topk: SparseTopkOption = None
    no_mmap: NoMmapOption = False
    json: FiguresFileOption = None
    quiet: QuietOption = False

    def __post_init__(self) -> None:
        """Check what options say of each other.

        Raises:
            ConfigError: A step cannot have as many rows as are to be timed, or an attention mode
                meets a KV type it cannot read.
        """
        require_int8(self.attention, self.kv_type)
        most = self.row_counts[-1]
        if most > self.rows_per_chunk:
            raise ConfigError(
                f"--rows {most} is more than the {self.rows_per_chunk} rows that -b allows a step"
            )

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Numbers of rows to time steps with, ascending."""
        return checks.parse_integers(self.rows)

    @property
    def json_path(self) -> Path | None:
        """The file for the figures, if there is to be one."""
        return file_of(self.json)

    def plan(self, context_length: int) -> BenchmarkPlan:
        """Return what to time with a model of this context in tokens.

        Raises:
            ConfigError: The deepest depth and the steps there are more than the context.
        """
        room = room_tokens(self.decode, self.row_counts)
        deepest = context_length - room
        asked = checks.parse_integers(self.depths)
        depths = asked or tuple(depth for depth in DEFAULT_DEPTHS_TOKENS if depth <= deepest)
        if not depths or depths[-1] > deepest:
            raise ConfigError(
                f"--depths {format_count(max(depths or DEFAULT_DEPTHS_TOKENS[:1]))} and the "
                f"{room} tokens of steps there are more than this model's context of "
                f"{format_count(context_length)} tokens; the deepest that fits is "
                f"{format_count(max(0, deepest))}"
            )
        return BenchmarkPlan(
            depths_tokens=depths,
            decode_steps=self.decode,
            row_counts=self.row_counts,
            rows_per_chunk=self.rows_per_chunk,
            attention=AttentionConfig(
                mode=self.attention, mass=self.sparse_mass, tokens=self.sparse_topk
            ),
        )

    def engine_config(self, plan: BenchmarkPlan) -> EngineConfig:
        """Return how to load the model for a plan."""
        return EngineConfig(
            threads=self.threads,
            context_tokens=plan.context_tokens,
            kv_type=self.kv_type,
            rows_per_chunk=self.rows_per_chunk,
            mmap=not self.no_mmap,
        )
