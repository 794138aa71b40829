"""The options of an engine by the names that callers and commands use."""

from __future__ import annotations

import difflib
import os
from typing import TypedDict

from ellm.config.attention import AttentionConfig
from ellm.config.cache import DEFAULT_DISK_GB, CacheConfig
from ellm.config.engine import EngineConfig
from ellm.config.speculation import SpeculationConfig

_Path = str | os.PathLike[str]


class EngineOptions(TypedDict, total=False):
    """Keyword arguments of `LLM`; each has the default and the bounds of its configuration.

    Attributes:
        threads: See `EngineConfig`; so are the next four.
        context_tokens: Tokens of prompt and answer that fit.
        kv_type: "int8", "f16" or "f32".
        rows_per_chunk: Prompt tokens per step.
        mmap: Map the weights.
        attention: Mode of `AttentionConfig`: "exact", "bounded", "sparse" or "auto".
        sparse_tokens: Its `tokens`.
        sparse_mass: Its `mass`.
        speculation: Mode of `SpeculationConfig`: "auto", "off", "suffix", "draft_model", "shallow".
        draft_model: Its `draft_model`.
        chain_length: Its `chain_length`.
        cache_reuse: `reuse` of `CacheConfig`.
        cache_dir: Its `directory`.
        kv_cache_gb: Its `memory_gb`.
        cache_disk_gb: Its `disk_gb`.
    """

    threads: int | None
    context_tokens: int | None
    kv_type: str
    rows_per_chunk: int
    mmap: bool
    attention: str
    sparse_tokens: int | None
    sparse_mass: float | None
    speculation: str
    draft_model: _Path | None
    chain_length: int | None
    cache_reuse: bool
    cache_dir: _Path | None
    kv_cache_gb: float | None
    cache_disk_gb: float


def engine_config(options: EngineOptions) -> EngineConfig:
    """Return the checked configuration that `options` make.

    Raises:
        ConfigError: A value cannot work.
        TypeError: There is no option of that name.
    """
    for name in options:
        if name not in EngineOptions.__annotations__:
            near = difflib.get_close_matches(name, EngineOptions.__annotations__, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"LLM has no option {name!r}{hint}")
    return EngineConfig(
        threads=options.get("threads"),
        context_tokens=options.get("context_tokens"),
        kv_type=options.get("kv_type", "int8"),
        rows_per_chunk=options.get("rows_per_chunk", 512),
        mmap=options.get("mmap", True),
        attention=AttentionConfig(
            mode=options.get("attention", "exact"),
            mass=options.get("sparse_mass"),
            tokens=options.get("sparse_tokens"),
        ),
        speculation=SpeculationConfig(
            mode=options.get("speculation", "auto"),
            draft_model=as_text(options.get("draft_model")),
            chain_length=options.get("chain_length"),
        ),
        cache=CacheConfig(
            reuse=options.get("cache_reuse", True),
            directory=as_text(options.get("cache_dir")),
            memory_gb=options.get("kv_cache_gb"),
            disk_gb=options.get("cache_disk_gb", DEFAULT_DISK_GB),
        ),
    )


def as_text(path: _Path | None) -> str | None:
    """Return a path as a string."""
    return None if path is None else os.fspath(path)
