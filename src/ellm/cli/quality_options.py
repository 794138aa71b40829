"""The options of `ellm quality`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from ellm.cli import checks
from ellm.cli.json_file import file_of
from ellm.cli.options import (
    KvTypeOption,
    NoMmapOption,
    QuietOption,
    RowsPerChunkOption,
    SparseMassOption,
    SparseTopkOption,
    ThreadsOption,
)
from ellm.config.attention import ATTENTION_MODES, BASELINE_MODES, AttentionConfig
from ellm.config.bounds import MAX_TOKENS
from ellm.config.engine import EngineConfig, require_int8
from ellm.errors import ConfigError
from ellm.quality.plan import (
    LEAST_LENGTH_TOKENS,
    MAX_SAMPLES,
    MAX_TAIL_TOKENS,
    Arm,
    QualityPlan,
    room_tokens,
)
from ellm.quality.tasks.registry import TASKS
from ellm.units import format_count

ALL = "all"
DEFAULT_LENGTHS_TOKENS = (4096, 8192)
DEFAULT_MODES = ("bounded", "sparse")
DEFAULT_SAMPLES = 10
DEFAULT_TAIL_TOKENS = 192
PICTURE_SUFFIXES = (".svg", ".html")
_CHOOSING_MODES = ("sparse", "auto", *BASELINE_MODES)
_MASS_MODES = ("bounded", *_CHOOSING_MODES)


def _picture(value: Path | None) -> Path | None:
    if value is not None and value.suffix.lower() not in PICTURE_SUFFIXES:
        raise typer.BadParameter(
            f"{str(value)!r} does not end with {' or '.join(PICTURE_SUFFIXES)}"
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityOptions:
    """What the user chose; the fields' annotations are the command line."""

    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="The reference, read with exact attention; as for -m elsewhere.",
            show_default="smollm2-135m",
        ),
    ] = None
    lengths: Annotated[
        list[str],
        typer.Option(
            "--lengths",
            metavar="TOKENS,...",
            help=f"Lengths of prompts, from {LEAST_LENGTH_TOKENS}.",
            callback=checks.integers(LEAST_LENGTH_TOKENS, MAX_TOKENS),
            show_default="4096,8192, as far as the model's context goes",
        ),
    ] = field(default_factory=list)
    tasks: Annotated[
        list[str],
        typer.Option(
            "--tasks",
            metavar="NAME,...",
            help=f"Which tasks to answer: {', '.join((ALL, *TASKS))}.",
            callback=checks.names("task", (ALL, *TASKS)),
            show_default=ALL,
        ),
    ] = field(default_factory=list)
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples",
            help="Items of each task at each length.",
            callback=checks.within(1, MAX_SAMPLES),
            show_default=str(DEFAULT_SAMPLES),
        ),
    ] = None
    seed: Annotated[
        int,
        typer.Option("--seed", help="Same seed, same items.", callback=checks.within(0, 2**63 - 1)),
    ] = 0
    attention: Annotated[
        list[str],
        typer.Option(
            "--attention",
            metavar="MODE,...",
            help="Attention modes of the candidates: "
            f"{', '.join(ATTENTION_MODES + BASELINE_MODES)}.",
            callback=checks.names("attention mode", ATTENTION_MODES + BASELINE_MODES),
            show_default="bounded,sparse; exact where model or KV type differ",
        ),
    ] = field(default_factory=list)
    sparse_mass: SparseMassOption = None
    sparse_topk: SparseTopkOption = None
    candidate_model: Annotated[
        str | None,
        typer.Option(
            "--candidate-model",
            metavar="MODEL",
            help="Another file of the same model, such as another quantization, to compare.",
        ),
    ] = None
    kv_type: KvTypeOption = "int8"
    reference_kv_type: Annotated[
        str | None,
        typer.Option(
            "--reference-kv-type",
            help="Storage of the reference's keys and values; that of --kv-type by default.",
            callback=checks.kv_type,
        ),
    ] = None
    text: Annotated[
        list[Path],
        typer.Option(
            "--text",
            metavar="FILE",
            help="Text to hide needles in and to compare predictions over, in place of licences "
            "and Python's sources; may be repeated.",
        ),
    ] = field(default_factory=list)
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail",
            metavar="TOKENS",
            help="Tokens that are fed one by one after a text, to compare predictions.",
            callback=checks.within(1, MAX_TAIL_TOKENS),
            show_default=str(DEFAULT_TAIL_TOKENS),
        ),
    ] = None
    no_tasks: Annotated[bool, typer.Option("--no-tasks", help="Only compare predictions.")] = False
    no_fidelity: Annotated[bool, typer.Option("--no-fidelity", help="Only answer the tasks.")] = (
        False
    )
    threads: ThreadsOption = None
    rows_per_chunk: RowsPerChunkOption = 512
    no_mmap: NoMmapOption = False
    json: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write the figures and all answers to a file, too; - prints them instead of the "
            "tables.",
        ),
    ] = None
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture",
            metavar="FILE.svg",
            help="Draw the scores by length and place of the needle; .svg or .html.",
            callback=_picture,
        ),
    ] = None
    quiet: QuietOption = False

    def __post_init__(self) -> None:
        """Check what options say of each other.

        Raises:
            ConfigError: An option would have no effect, nothing is left to measure, or an attention
                mode meets a KV type it cannot read.
        """
        if self.no_tasks and self.no_fidelity:
            raise ConfigError("--no-tasks and --no-fidelity leave nothing to measure")
        self._refuse_idle("--no-tasks", self.no_tasks, ("tasks", "samples", "picture"))
        self._refuse_idle("--no-fidelity", self.no_fidelity, ("tail",))
        modes = self.modes
        for mode in modes:
            require_int8(mode, self.kv_type)
        if self.sparse_mass is not None and not set(modes) & set(_MASS_MODES):
            raise ConfigError(f"--sparse-mass has no effect on {', '.join(modes)} attention")
        if self.sparse_topk is not None and not set(modes) & set(_CHOOSING_MODES):
            raise ConfigError(f"--sparse-topk has no effect on {', '.join(modes)} attention")
        if self.picture is not None and not any(TASKS[t].has_position for t in self.task_names):
            raise ConfigError(
                "--picture shows scores by the place of the needle; none of the tasks "
                f"{', '.join(self.task_names)} has one place"
            )
        if self.picture is not None and self.picture == self.json_path:
            raise ConfigError(f"--picture and --json are both {self.picture}")

    @property
    def task_names(self) -> tuple[str, ...]:
        """Names of the tasks to answer."""
        if self.no_tasks:
            return ()
        chosen = checks.parse_names(self.tasks) or (ALL,)
        return tuple(TASKS) if ALL in chosen else chosen

    @property
    def modes(self) -> tuple[str, ...]:
        """Attention modes of the candidates."""
        return checks.parse_names(self.attention) or (
            ("exact",) if self.separate else DEFAULT_MODES
        )

    @property
    def separate(self) -> bool:
        """Whether the candidates are another model than the reference, loaded after it."""
        return self.candidate_model is not None or self.kv_type_of_reference != self.kv_type

    @property
    def kv_type_of_reference(self) -> str:
        """Storage of the reference's keys and values."""
        return self.reference_kv_type or self.kv_type

    @property
    def candidates(self) -> tuple[Arm, ...]:
        """What is compared with the reference."""
        return tuple(Arm(mode, self._attention(mode)) for mode in self.modes)

    @property
    def json_path(self) -> Path | None:
        """The file for the figures, if there is to be one."""
        return file_of(self.json)

    def plan(self, context_length: int) -> QualityPlan:
        """Return what to measure with models of this context in tokens.

        Raises:
            ConfigError: The greatest length and what follows are more than the context.
        """
        tail = DEFAULT_TAIL_TOKENS if self.tail is None else self.tail
        room = room_tokens(tail, has_tasks=not self.no_tasks, has_fidelity=not self.no_fidelity)
        longest = context_length - room
        asked = checks.parse_integers(self.lengths)
        lengths = asked or tuple(n for n in DEFAULT_LENGTHS_TOKENS if n <= longest)
        if not lengths or lengths[-1] > longest:
            raise ConfigError(
                f"--lengths {format_count(max(lengths or DEFAULT_LENGTHS_TOKENS[:1]))} and the "
                f"{room} tokens after a prompt are more than this model's context of "
                f"{format_count(context_length)} tokens; the greatest that fits is "
                f"{format_count(max(0, longest))}"
            )
        return QualityPlan(
            lengths_tokens=lengths,
            tasks=self.task_names,
            samples=DEFAULT_SAMPLES if self.samples is None else self.samples,
            seed=self.seed,
            fidelity=not self.no_fidelity,
            tail_tokens=tail,
            candidates=self.candidates,
        )

    def engine_config(self, plan: QualityPlan, kv_type: str) -> EngineConfig:
        """Return how to load a model for a plan."""
        return EngineConfig(
            threads=self.threads,
            context_tokens=plan.context_tokens,
            kv_type=kv_type,
            rows_per_chunk=self.rows_per_chunk,
            mmap=not self.no_mmap,
        )

    def _attention(self, mode: str) -> AttentionConfig:
        mass = self.sparse_mass if mode in _MASS_MODES else None
        tokens = self.sparse_topk if mode in _CHOOSING_MODES else None
        return AttentionConfig(mode=mode, mass=mass, tokens=tokens)

    def _refuse_idle(self, switch: str, off: bool, names: tuple[str, ...]) -> None:
        """Refuse options that have no effect beside a switch."""
        for name in names:
            if off and getattr(self, name) not in (None, []):
                raise ConfigError(f"--{name} has no effect with {switch}")
