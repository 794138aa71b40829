"""From a model reference to parts that can answer."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

from ellm.config.engine import EngineConfig
from ellm.config.model import ModelConfig
from ellm.engine.context import choose_context
from ellm.engine.parts import LoadedModel, LoadProgress
from ellm.engine.stats import ModelFacts
from ellm.formats.gguf import GgufFile
from ellm.formats.gguf.model_config import read_model_config
from ellm.hardware.cpus import choose_cpus
from ellm.hardware.memory import available_memory_bytes
from ellm.hub import resolve
from ellm.kv.block_pool import blocks_for
from ellm.models import ARCHITECTURES, build_program
from ellm.program.memory import memory_plan
from ellm.program.native_executor import NativeExecutor, load_native
from ellm.program.ops import Attention, Program
from ellm.program.weights import has_image
from ellm.sparse.counts import ChoiceTotals
from ellm.sparse.profile import SparseProfile, find_profile
from ellm.tokenizers.collector import collector_paused
from ellm.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model file whose header was read: everything but the weights.

    Attributes:
        file: The GGUF file.
        config: Hyper-parameters.
        program: What a step computes.
        tokenizer: Text to tokens and back.
        opening_seconds: How long this took.
    """

    file: GgufFile
    config: ModelConfig
    program: Program
    tokenizer: Tokenizer
    opening_seconds: float


def open_model(model: str | None, progress: LoadProgress | None = None) -> OpenedModel:
    """Read and check a model's header, so that prompts can be counted before weights are loaded.

    Args:
        model: A path, a registry name, a hub reference, or None for the default.
        progress: Called with bytes done and in total while it is fetched.

    Raises:
        EllmError: See `LLM`.
    """
    path = resolve(model) if progress is None else resolve(model, progress)
    started = time.perf_counter()
    with collector_paused():
        file = GgufFile.open(path)
        config = read_model_config(file, ARCHITECTURES)
        program = build_program(config, file.tensors, path=str(path))
        tokenizer = Tokenizer.from_gguf(file.metadata, path=str(path))
    return OpenedModel(file, config, program, tokenizer, time.perf_counter() - started)


def load_model(
    model: str | OpenedModel | None, options: EngineConfig, progress: LoadProgress | None = None
) -> LoadedModel:
    """Return the parts of a model; memory is counted before any is taken.

    Args:
        model: A path, a registry name, a hub reference, None for the default, or what `open_model`
            returned.
        options: How to load it.
        progress: Called with bytes done and in total, while it is fetched and while its weights
            are prepared.

    Raises:
        EllmError: See `LLM`.
    """
    opened = model if isinstance(model, OpenedModel) else open_model(model, progress)
    started = time.perf_counter()
    file, config, program = opened.file, opened.config, opened.program
    if not has_image(file):
        # A file never loaded before: a vocabulary that cannot be used is found before the weights
        # are repacked. Later starts leave the encoder to the first text.
        opened.tokenizer.prepare()
    cpus = choose_cpus(options.threads)
    context_tokens = choose_context(
        options.context_tokens,
        context_length=config.context_length,
        available_bytes=available_memory_bytes(),
        kv_type=options.kv_type,
        plan=lambda num_blocks: memory_plan(
            file,
            program,
            threads=len(cpus),
            num_blocks=num_blocks,
            max_rows=options.rows_per_chunk,
            kv_type=options.kv_type,
        ),
    )
    executor = load_native(
        file,
        program,
        cpus=cpus,
        num_blocks=blocks_for(context_tokens),
        max_rows=options.rows_per_chunk,
        kv_type=options.kv_type,
        mapped=options.mmap,
        progress=progress,
    )
    seconds = opened.opening_seconds + time.perf_counter() - started
    facts = _facts(executor, program, load_seconds=seconds)
    profile = _profile_of(opened)
    return LoadedModel(executor, opened.tokenizer, config, context_tokens, facts, profile)


def _facts(executor: NativeExecutor, program: Program, *, load_seconds: float) -> ModelFacts:
    return ModelFacts(
        isa=executor.isa,
        threads=executor.threads,
        model_load_ms=load_seconds * 1e3,
        weights_bytes=executor.weights_bytes,
        kv_bytes=executor.kv_bytes,
        arena_bytes=executor.arena_bytes,
        bytes_per_token=executor.bytes_per_token,
        bytes_saved=functools.partial(_bytes_saved, executor),
        choosing_heads=_choosing_heads(program),
    )


def _profile_of(opened: OpenedModel) -> SparseProfile | None:
    return find_profile(
        opened.file.fingerprint,
        num_layers=opened.program.num_layers,
        num_kv_heads=opened.program.num_kv_heads,
        num_heads=opened.config.num_heads,
    )


def _bytes_saved(executor: NativeExecutor, totals: ChoiceTotals) -> int:
    if totals.estimate is None:
        return 0
    return executor.bytes_saved(
        totals.estimate, blocks_total=totals.blocks_total, blocks_read=totals.blocks_read
    )


def _choosing_heads(program: Program) -> int:
    return sum(
        op.num_kv_heads for op in program.ops if isinstance(op, Attention) and op.window is None
    )
