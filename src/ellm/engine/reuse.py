"""Where KV blocks of a model are kept: names that nothing else has, and a place on disk."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

from ellm.config.cache import CacheConfig
from ellm.engine.prefixes import PrefixConfig
from ellm.kv.disk.disk_cache import DiskCache
from ellm.kv.installation_secret import SECRET_BYTES, load_secret
from ellm.program.executor import KV_FORMAT_VERSION


def prefix_config(
    cache: CacheConfig, *, model_fingerprint: str, kv_type: str, block_bytes: int
) -> PrefixConfig | None:
    """Return how blocks of a model are shared and kept; None if they are not.

    Args:
        cache: What was asked for.
        model_fingerprint: Of the model file, RoPE settings included.
        kv_type: Storage of keys and values.
        block_bytes: Bytes of a block.

    Raises:
        ConfigError: The directory cannot be used.
    """
    if not cache.reuse:
        return None
    named = f"{model_fingerprint} {kv_type} {KV_FORMAT_VERSION}"
    fingerprint = hashlib.blake2b(named.encode(), digest_size=32).digest()
    if cache.directory is None:
        return PrefixConfig(secrets.token_bytes(SECRET_BYTES), fingerprint)
    directory = Path(cache.directory).expanduser()
    secret = load_secret(directory)
    disk = DiskCache.open(
        directory,
        fingerprint=fingerprint,
        block_bytes=block_bytes,
        quota_bytes=int(cache.disk_gb * 1e9),
        read_only=not cache.disk_gb,
    )
    return PrefixConfig(secret, fingerprint, disk)
