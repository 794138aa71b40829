"""eLLM: answers questions about very long texts on ordinary CPU servers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ellm.config.options import EngineOptions
    from ellm.config.sampling import SamplingParams
    from ellm.engine.llm import LLM
    from ellm.engine.outputs import PromptProgress, RequestOutput, Score, StreamChunk
    from ellm.engine.stats import Stats
    from ellm.errors import (
        AbortedError,
        CapacityError,
        ConfigError,
        DownloadError,
        EllmError,
        InvalidModelError,
        ModelNotFoundError,
        NativeError,
        RequestError,
        TemplateError,
        UnsupportedError,
    )

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AbortedError",
    "CapacityError",
    "ConfigError",
    "DownloadError",
    "EllmError",
    "EngineOptions",
    "InvalidModelError",
    "ModelNotFoundError",
    "NativeError",
    "PromptProgress",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "Score",
    "Stats",
    "StreamChunk",
    "TemplateError",
    "UnsupportedError",
    "__version__",
]

# Imported on first use: the CLI's start and the template worker must not pay for NumPy.
_HOMES = {
    "EngineOptions": "ellm.config.options",
    "LLM": "ellm.engine.llm",
    "PromptProgress": "ellm.engine.outputs",
    "RequestOutput": "ellm.engine.outputs",
    "SamplingParams": "ellm.config.sampling",
    "Score": "ellm.engine.outputs",
    "Stats": "ellm.engine.stats",
    "StreamChunk": "ellm.engine.outputs",
}


def __getattr__(name: str) -> object:
    """Import a public name from its home on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'ellm' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES.get(name, "ellm.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(__all__)
