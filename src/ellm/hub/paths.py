"""Where models are kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """Return the directory of everything eLLM may delete and make again.

    `ELLM_CACHE` names it; the default is `~/.cache/ellm`.
    """
    named = os.environ.get("ELLM_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "ellm"


def models_dir() -> Path:
    """Return the directory that `pull` writes to."""
    return cache_root() / "models"


def search_dirs() -> list[Path]:
    """Return the directories searched for a model file, first match wins.

    `ELLM_MODELS` comes first, then the cache, then `~/.cache/ellm-models`, where the project's
    own test models are kept.
    """
    named = os.environ.get("ELLM_MODELS")
    first = [Path(named).expanduser()] if named else []
    return [*first, models_dir(), Path.home() / ".cache" / "ellm-models"]
