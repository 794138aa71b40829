"""Options of an engine, checked once when they are made."""

from __future__ import annotations

from dataclasses import dataclass

from ellm.config.attention import EXACT, AttentionConfig
from ellm.config.bounds import MAX_TOKENS, check_boolean, check_integer, refuse
from ellm.config.cache import NO_REUSE, CacheConfig
from ellm.config.speculation import NO_SPECULATION, SpeculationConfig

KV_TYPES = ("int8", "f16", "f32")
MAX_ROWS_PER_CHUNK = 8192
MAX_THREADS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How a model is loaded and run; every field is checked on construction.

    Attributes:
        threads: Threads to use, at most those this process may run on; None is all of those.
        context_tokens: Tokens of prompt and answer that the KV cache holds, shared by the
            sequences that run together; None is the model's own context, or as much of it as
            memory has room for.
        kv_type: Storage of keys and values: "int8" (280 bytes per token, layer and KV head of 128),
            "f16" (512) or "f32" (1,024).
        rows_per_chunk: Rows of a step at most: how a prompt is cut, which changes no result.
        mmap: Map the weights instead of copying them to memory.
        attention: Which KV blocks answers read; all but "exact" take int8 KV.
        speculation: Where guesses at the next tokens come from.
        cache: How blocks are kept, so that no text is read twice.

    Raises:
        ConfigError: A value cannot work; the message names field, value and what is allowed.
    """

    threads: int | None = None
    context_tokens: int | None = None
    kv_type: str = "int8"
    rows_per_chunk: int = 512
    mmap: bool = True
    attention: AttentionConfig = EXACT
    speculation: SpeculationConfig = NO_SPECULATION
    cache: CacheConfig = NO_REUSE

    def __post_init__(self) -> None:
        """Check every field."""
        if self.threads is not None:
            check_integer("threads", self.threads, minimum=1, maximum=MAX_THREADS)
        if self.context_tokens is not None:
            check_integer("context_tokens", self.context_tokens, minimum=2, maximum=MAX_TOKENS)
        if self.kv_type not in KV_TYPES:
            refuse("kv_type", self.kv_type, " or ".join(map(repr, KV_TYPES)))
        check_integer("rows_per_chunk", self.rows_per_chunk, minimum=1, maximum=MAX_ROWS_PER_CHUNK)
        check_boolean("mmap", self.mmap)
        require_int8(self.attention.mode, self.kv_type)


def require_int8(attention: str, kv_type: str) -> None:
    """Check that an attention mode can read a KV type.

    Raises:
        ConfigError: It cannot: only int8 blocks can be read in part.
    """
    if attention != "exact" and kv_type != "int8":
        refuse("kv_type", kv_type, f"'int8' with attention {attention!r}")
