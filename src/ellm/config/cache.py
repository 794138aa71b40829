"""How keys and values that were computed are kept, checked once when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from ellm.config.bounds import check_boolean, check_number, refuse

DEFAULT_DISK_GB = 20.0
MAX_GB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Where KV blocks are kept, so that no text is read twice.

    Attributes:
        reuse: Share the blocks of equal beginnings of prompts, in memory and on disk.
        directory: Where blocks go that outlive the process; None keeps none.
        memory_gb: Size of the KV cache in 1e9 bytes; None is as much as `context_tokens` take if
            they are given, else what memory leaves.
        disk_gb: Most that the directory may hold, in 1e9 bytes; 0 writes nothing.

    Raises:
        ConfigError: A value cannot work; the message names field, value and what is allowed.
    """

    reuse: bool = True
    directory: str | None = None
    memory_gb: float | None = None
    disk_gb: float = DEFAULT_DISK_GB

    def __post_init__(self) -> None:
        """Check every field."""
        check_boolean("cache_reuse", self.reuse)
        if self.directory is not None and (
            not isinstance(self.directory, str) or not self.directory or "\0" in self.directory
        ):
            refuse("cache_dir", self.directory, "the path of a directory")
        if self.memory_gb is not None:
            check_number("kv_cache_gb", self.memory_gb, minimum=0.0, maximum=MAX_GB, above=True)
        check_number("cache_disk_gb", self.disk_gb, minimum=0.0, maximum=MAX_GB)


NO_REUSE = CacheConfig(reuse=False)
