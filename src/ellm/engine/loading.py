"""From a model reference to parts that can answer."""

from __future__ import annotations

import time

from ellm.config.engine import EngineConfig
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
from ellm.program.native_executor import load_native
from ellm.tokenizers.tokenizer import Tokenizer


def load_model(
    model: str | None, options: EngineConfig, progress: LoadProgress | None = None
) -> LoadedModel:
    """Return the parts of a model; memory is counted before any is taken.

    Args:
        model: A path, a registry name, a hub reference, or None for the default.
        options: How to load it.
        progress: Called with bytes done and in total, while it is fetched and while its weights
            are prepared.

    Raises:
        EllmError: See `LLM`.
    """
    path = resolve(model) if progress is None else resolve(model, progress)
    started = time.perf_counter()
    file = GgufFile.open(path)
    config = read_model_config(file, ARCHITECTURES)
    program = build_program(config, file.tensors, path=str(path))
    cpus = choose_cpus(options.threads)
    context_tokens = choose_context(
        options.context_tokens,
        context_length=config.context_length,
        available_bytes=available_memory_bytes(),
        plan=lambda num_blocks: memory_plan(
            file,
            program,
            threads=len(cpus),
            num_blocks=num_blocks,
            max_rows=options.rows_per_chunk,
            kv_type=options.kv_type,
        ),
    )
    tokenizer = Tokenizer.from_gguf(file.metadata, path=str(path))
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
    facts = ModelFacts(
        isa=executor.isa,
        threads=executor.threads,
        model_load_ms=(time.perf_counter() - started) * 1e3,
        weights_bytes=executor.weights_bytes,
        kv_bytes=executor.kv_bytes,
        arena_bytes=executor.arena_bytes,
        bytes_per_token=executor.bytes_per_token,
    )
    return LoadedModel(executor, tokenizer, config, context_tokens, facts)
