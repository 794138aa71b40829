"""The options that commands share, each declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ellm.cli import checks
from ellm.config.bounds import MAX_TOKENS
from ellm.config.cache import MAX_GB
from ellm.config.engine import MAX_ROWS_PER_CHUNK, MAX_THREADS, require_int8
from ellm.config.sampling import SamplingParams
from ellm.config.speculation import MAX_CHAIN_TOKENS, SpeculationConfig


def _option(*names: str, text: str, check: Callable[[Any], Any]) -> Any:
    return typer.Option(*names, help=text, callback=check)


ModelOption = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        help="GGUF file or directory, built-in name, or Hugging Face org/repo[:quant].",
        show_default="smollm2-135m",
    ),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="As for -m elsewhere.", show_default="smollm2-135m"),
]
ThreadsOption = Annotated[
    int | None,
    _option(
        "-t",
        "--threads",
        text="Threads; all allowed CPUs by default.",
        check=checks.within(1, MAX_THREADS),
    ),
]
RowsPerChunkOption = Annotated[
    int,
    _option(
        "-b",
        "--n-batch",
        text="Prompt tokens read in one step.",
        check=checks.within(1, MAX_ROWS_PER_CHUNK),
    ),
]
KvTypeOption = Annotated[
    str,
    _option(
        "--kv-type", text="Storage of keys and values: int8, f16 or f32.", check=checks.kv_type
    ),
]
AttentionOption = Annotated[
    str,
    _option(
        "--attention",
        text="What answers read of the KV cache: exact (all of it), bounded (all keys, the values "
        "that matter), sparse (the blocks that matter), auto (sparse deep in a text).",
        check=checks.attention_mode,
    ),
]
SparseMassOption = Annotated[
    float | None,
    typer.Option(
        "--sparse-mass",
        help="Share of the attention that the blocks read must hold, when not exact.",
        callback=checks.within(0.0, 1.0, above=True),
        show_default="what ellm calibrate found, or 0.95",
    ),
]
SparseTopkOption = Annotated[
    int | None,
    _option(
        "--sparse-topk",
        text="Most tokens chosen besides the first 64 and the last 512; as many as the mass takes "
        "by default.",
        check=checks.within(64, MAX_TOKENS),
    ),
]
CacheDirOption = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        metavar="DIR",
        help="Where what was read is kept on disk.",
        show_default="~/.cache/ellm/kv",
    ),
]
NoMmapOption = Annotated[
    bool, typer.Option("--no-mmap", help="Copy the weights into memory instead of mapping.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
FiguresFileOption = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write the figures to a file, too; - prints them instead of the table.",
    ),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no stats, only the result.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """Options of every command that answers; the fields' annotations are the command line."""

    model: ModelOption = None
    max_tokens: Annotated[
        int | None,
        _option(
            "-n",
            "--max-tokens",
            text="Tokens to answer with at most.",
            check=checks.within(1, MAX_TOKENS),
        ),
    ] = None
    context_tokens: Annotated[
        int | None,
        _option(
            "-c",
            "--n-ctx",
            text="Tokens of prompt and answer to make room for; as many as needed by default.",
            check=checks.within(2, MAX_TOKENS),
        ),
    ] = None
    threads: ThreadsOption = None
    rows_per_chunk: RowsPerChunkOption = 512
    kv_type: KvTypeOption = "int8"
    attention: AttentionOption = "exact"
    sparse_mass: SparseMassOption = None
    sparse_topk: SparseTopkOption = None
    speculation: Annotated[
        str,
        _option(
            "--speculation",
            text="Where guesses at the next tokens come from, which only make answers faster: auto "
            "(what is there and pays), suffix (copies from the text), draft_model, shallow (the "
            "model's first layers), off.",
            check=checks.speculation_mode,
        ),
    ] = "auto"
    draft_model: Annotated[
        str | None,
        typer.Option(
            "--draft-model",
            help="A smaller model of the same vocabulary that guesses, named as for -m.",
        ),
    ] = None
    speculative_chain: Annotated[
        int | None,
        typer.Option(
            "--speculative-chain",
            help="Most guesses per step.",
            callback=checks.within(1, MAX_CHAIN_TOKENS),
            show_default="5, or 16 with more than 8 threads",
        ),
    ] = None
    cache_reuse: Annotated[
        int,
        _option(
            "--cache-reuse",
            text="1 keeps what was read, in memory and on disk, so that no text is read twice; 0 "
            "does not.",
            check=checks.within(0, 1),
        ),
    ] = 1
    cache_dir: CacheDirOption = None
    cache_disk_gb: Annotated[
        float | None,
        typer.Option(
            "--cache-disk-gb",
            help="Most gigabytes on disk; 0 writes nothing.",
            callback=checks.within(0.0, MAX_GB),
            show_default="20, or half of what is free",
        ),
    ] = None
    kv_cache_gb: Annotated[
        float | None,
        typer.Option(
            "--kv-cache-gb",
            help="Gigabytes of memory for keys and values.",
            callback=checks.within(0.0, MAX_GB, above=True),
            show_default="what prompt and answer take",
        ),
    ] = None
    no_mmap: NoMmapOption = False
    temperature: Annotated[
        float,
        _option(
            "--temperature",
            text="0 always takes the likeliest token; higher varies more.",
            check=checks.within(0.0, 100.0),
        ),
    ] = 0.0
    top_k: Annotated[
        int,
        _option(
            "--top-k",
            text="Sample from the k likeliest tokens; 0 is all.",
            check=checks.within(0, MAX_TOKENS),
        ),
    ] = 0
    top_p: Annotated[
        float,
        _option(
            "--top-p",
            text="Sample from the likeliest tokens that make up this share.",
            check=checks.within(0.0, 1.0, above=True),
        ),
    ] = 1.0
    min_p: Annotated[
        float,
        _option(
            "--min-p",
            text="Drop tokens less likely than this share of the likeliest.",
            check=checks.within(0.0, 1.0),
        ),
    ] = 0.0
    repeat_penalty: Annotated[
        float,
        _option(
            "--repeat-penalty",
            text="Above 1 makes recent tokens less likely.",
            check=checks.within(0.0, 10.0, above=True),
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float,
        _option(
            "--presence-penalty",
            text="Subtracted from tokens that the answer has.",
            check=checks.within(-2.0, 2.0),
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        _option(
            "--frequency-penalty",
            text="Subtracted per time that the answer has a token.",
            check=checks.within(-2.0, 2.0),
        ),
    ] = 0.0
    seed: Annotated[
        int | None,
        _option(
            "--seed",
            text="Makes sampling repeatable.",
            check=checks.within(0, 2**63 - 1),
        ),
    ] = None
    stop: Annotated[
        list[str],
        _option("--stop", text="End before this text; may be repeated.", check=checks.stop_strings),
    ] = field(default_factory=list)
    logit_bias: Annotated[
        list[str],
        _option(
            "--logit-bias",
            text="ID=VALUE, added to a token's logit; may be repeated.",
            check=checks.logit_bias,
        ),
    ] = field(default_factory=list)
    system: Annotated[
        str | None, typer.Option("--system", help="System message for the chat template.")
    ] = None
    json: JsonOption = False
    quiet: QuietOption = False
    no_stats: Annotated[
        bool, typer.Option("--no-stats", help="No block of figures after the answer.")
    ] = False

    def __post_init__(self) -> None:
        """Check what options say of each other.

        Raises:
            ConfigError: An attention mode meets a KV type it cannot read, or a source of guesses
                needs a model that is not given.
        """
        require_int8(self.attention, self.kv_type)
        SpeculationConfig(mode=self.speculation, draft_model=self.draft_model)

    def sampling_params(self, max_tokens: int, *, stop: tuple[str, ...] = ()) -> SamplingParams:
        """Return the parameters of the request; `stop` is added to the user's stop strings."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=checks.parse_logit_bias(self.logit_bias),
            seed=self.seed,
            stop=(*self.stop, *stop),
        )


def takes_options(kind: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command, whose last parameter is `options`, all of `kind`.

    Typer reads a function's signature, so the wrapper gets one with the fields of `kind`, a
    dataclass, in place of `options`. Writing them out in each command was rejected: a new option
    would need two edits.
    """
    hints = get_type_hints(kind, include_extras=True)
    options = [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=item.default_factory() if callable(item.default_factory) else item.default,
            annotation=hints[item.name],
        )
        for item in fields(kind)
    ]
    names = {option.name for option in options}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [*(p for p in own if p.name != "options"), *options]

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            chosen = {name: value for name, value in values.items() if name in names}
            others = {name: value for name, value in values.items() if name not in names}
            command(**others, options=kind(**chosen))

        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate
