"""What commands use of the engine: finding, describing and loading a model.

Commands call these functions through the module, so that a test can put a small engine in their
place. Everything below is imported when it is needed: `ellm --help` must not pay for NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ellm.cli.console import Console
from ellm.cli.interrupt import call_interruptibly
from ellm.cli.kv_place import kv_place
from ellm.units import format_bytes

if TYPE_CHECKING:
    from ellm import LLM
    from ellm.cli.options import GenerationOptions
    from ellm.config.engine import EngineConfig
    from ellm.engine.opening import OpenedModel
    from ellm.engine.parts import LoadedModel
    from ellm.formats.gguf import GgufFile
    from ellm.tokenizers.tokenizer import Tokenizer

Progress = Callable[[int, int], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelText:
    """What is known of a model before its weights are loaded.

    Attributes:
        tokenizer: Its tokenizer.
        context_length: Tokens it was trained to read.
        source: What the engine loads it from.
    """

    tokenizer: Tokenizer
    context_length: int
    source: OpenedModel | Path


def find_model(reference: str | None, console: Console) -> Path:
    """Return the file of a model, fetching it with a progress line if need be."""
    from ellm.hub import resolve

    line = console.progress(f"fetching {reference or 'the default model'}")
    try:
        return resolve(reference, _bytes_shown_by(line.update))
    finally:
        line.clear()


def open_gguf(path: Path) -> GgufFile:
    """Return the opened model file."""
    from ellm.formats.gguf import GgufFile

    return GgufFile.open(path)


def open_header(path: Path) -> OpenedModel:
    """Return all of a model file but its weights."""
    from ellm.engine.opening import open_model

    return open_model(str(path))


def open_text(path: Path) -> ModelText:
    """Return tokenizer and context length of a model file."""
    opened = open_header(path)
    return ModelText(opened.tokenizer, opened.config.context_length, opened)


def load_engine(
    source: OpenedModel | Path,
    options: GenerationOptions,
    context_tokens: int | None,
    console: Console,
) -> LLM:
    """Return the loaded model, with a progress line while its weights are prepared.

    Without `context_tokens` there is room for as much as model and memory allow.
    """
    from ellm import LLM

    place = kv_place(options, console)
    return _with_progress(
        console,
        lambda progress: LLM(
            source,
            threads=options.threads,
            context_tokens=context_tokens,
            kv_type=options.kv_type,
            rows_per_chunk=options.rows_per_chunk,
            mmap=not options.no_mmap,
            attention=options.attention,
            sparse_tokens=options.sparse_topk,
            sparse_mass=options.sparse_mass,
            speculation=options.speculation,
            draft_model=options.draft_model,
            chain_length=options.speculative_chain,
            cache_reuse=bool(options.cache_reuse),
            cache_dir=place.directory,
            cache_disk_gb=place.disk_gb,
            kv_cache_gb=options.kv_cache_gb,
            load_progress=progress,
        ),
    )


def load_llm(source: OpenedModel | Path, config: EngineConfig, console: Console) -> LLM:
    """Return the model loaded as `config` says, with a progress line as `load_engine` has."""
    from ellm import LLM

    return _with_progress(
        console,
        lambda progress: LLM(
            source,
            threads=config.threads,
            context_tokens=config.context_tokens,
            kv_type=config.kv_type,
            rows_per_chunk=config.rows_per_chunk,
            mmap=config.mmap,
            speculation=config.speculation.mode,
            cache_reuse=config.cache.reuse,
            load_progress=progress,
        ),
    )


def load_parts(source: OpenedModel | Path, options: EngineConfig, console: Console) -> LoadedModel:
    """Return what an engine is made of, loaded as `load_engine` does."""
    from ellm.engine.loading import load_model

    model = str(source) if isinstance(source, Path) else source
    return _with_progress(console, lambda progress: load_model(model, options, progress))


def _with_progress(console: Console, load: Callable[[Progress], T]) -> T:
    line = console.progress("loading the model")
    try:
        return call_interruptibly(lambda: load(_bytes_shown_by(line.update)))
    finally:
        line.clear()


def _bytes_shown_by(update: Callable[[float, float, str], None]) -> Progress:
    def progress(done_bytes: int, total_bytes: int) -> None:
        update(
            done_bytes, total_bytes, f"{format_bytes(done_bytes)} of {format_bytes(total_bytes)}"
        )

    return progress
