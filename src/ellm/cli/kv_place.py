"""Where commands keep what they have read."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ellm.cli.console import Console
from ellm.config.cache import DEFAULT_DISK_GB
from ellm.errors import ConfigError

if TYPE_CHECKING:
    from ellm.cli.options import GenerationOptions


@dataclass(frozen=True, slots=True)
class KvPlace:
    """A directory for KV blocks and what they may take of it.

    Attributes:
        directory: Where; None keeps none.
        disk_gb: Most gigabytes.
    """

    directory: Path | None
    disk_gb: float


def default_kv_dir() -> Path:
    """Return the directory that commands use unless told otherwise.

    `ELLM_KV_CACHE` names it; the default is `kv` where eLLM keeps everything else.
    """
    from ellm.hub.paths import cache_root

    named = os.environ.get("ELLM_KV_CACHE")
    return Path(named).expanduser() if named else cache_root() / "kv"


def kv_place(options: GenerationOptions, console: Console) -> KvPlace:
    """Return where the blocks of a command go.

    A directory that the user named must be usable; without the usual one a command goes on.

    Raises:
        ConfigError: The directory that was asked for cannot be used.
    """
    from ellm.kv.disk.private_files import private_directory
    from ellm.kv.installation_secret import load_secret

    if not options.cache_reuse:
        return KvPlace(None, 0.0)
    try:
        directory = private_directory(options.cache_dir or default_kv_dir())
        load_secret(directory)
    except ConfigError as error:
        if options.cache_dir is not None:
            raise
        console.warn(f"nothing is kept on disk: {error}")
        return KvPlace(None, 0.0)
    if options.cache_disk_gb is not None:
        return KvPlace(directory, options.cache_disk_gb)
    return KvPlace(directory, min(DEFAULT_DISK_GB, shutil.disk_usage(directory).free / 2e9))
