"""From a model reference to parts that can answer."""

from __future__ import annotations

import functools
import time
from contextlib import ExitStack

from ellm.config.engine import EngineConfig
from ellm.engine.context import choose_context
from ellm.engine.opening import OpenedModel, open_model
from ellm.engine.parts import LoadedModel, LoadProgress
from ellm.engine.pool_size import choose_blocks
from ellm.engine.reuse import prefix_config
from ellm.engine.sources import SourcePlan, plan_sources
from ellm.engine.stats import ModelFacts
from ellm.hardware.cpus import choose_cpus
from ellm.hardware.memory import available_memory_bytes
from ellm.program.executor import BLOCK_TOKENS
from ellm.program.memory import MemoryPlan, kv_block_bytes, memory_plan
from ellm.program.native_executor import NativeExecutor, load_native
from ellm.program.ops import Attention, Program
from ellm.program.weights import has_image
from ellm.sparse.counts import ChoiceTotals
from ellm.sparse.profile import SparseProfile, find_profile


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
    sources = plan_sources(opened, options, cpus, progress)
    context_tokens, num_blocks = _sizes(opened, options, len(cpus), sources)
    with ExitStack() as undo:
        # First: a directory that cannot be used is told before minutes of repacking.
        reuse = prefix_config(
            options.cache,
            model_fingerprint=file.fingerprint,
            kv_type=options.kv_type,
            block_bytes=kv_block_bytes(program, options.kv_type),
        )
        if reuse is not None:
            undo.callback(reuse.close)
        executor = load_native(
            file,
            program,
            cpus=cpus,
            num_blocks=num_blocks,
            max_rows=options.rows_per_chunk,
            max_tokens=context_tokens,
            kv_type=options.kv_type,
            mapped=options.mmap,
            progress=progress,
        )
        chains = sources.load(executor, mapped=options.mmap, progress=progress)
        undo.pop_all()
    seconds = opened.opening_seconds + time.perf_counter() - started
    return LoadedModel(
        executor,
        opened.tokenizer,
        config,
        context_tokens,
        facts=_facts(executor, program, load_seconds=seconds),
        profile=_profile_of(opened),
        chains=chains,
        reuse=reuse,
    )


def _sizes(
    opened: OpenedModel, options: EngineConfig, threads: int, sources: SourcePlan
) -> tuple[int, int]:
    """Return the tokens of a context and the number of KV blocks."""

    def plan(num_blocks: int, max_tokens: int | None = None) -> MemoryPlan:
        return memory_plan(
            opened.file,
            opened.program,
            threads=threads,
            num_blocks=num_blocks,
            max_rows=options.rows_per_chunk,
            kv_type=options.kv_type,
            max_tokens=max_tokens,
            num_exits=sources.num_exits,
        )

    available_bytes = available_memory_bytes() - sources.draft_bytes
    kv_bytes = kv_block_bytes(opened.program, options.kv_type)
    context_length = opened.config.context_length
    if options.cache.memory_gb is not None and options.context_tokens is None:
        fits = int(options.cache.memory_gb * 1e9) // kv_bytes * BLOCK_TOKENS
        context_length = max(BLOCK_TOKENS, min(context_length, fits))
    context_tokens = choose_context(
        options.context_tokens,
        context_length=context_length,
        available_bytes=available_bytes,
        kv_type=options.kv_type,
        plan=plan,
    )
    num_blocks = choose_blocks(
        options.cache.memory_gb,
        context_tokens=context_tokens,
        keep=options.cache.reuse and options.context_tokens is None,
        block_bytes=kv_bytes,
        available_bytes=available_bytes,
        plan=lambda blocks: plan(blocks, context_tokens),
    )
    return context_tokens, num_blocks


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
