"""Finds the real model files and the reference figures that belong to them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

SMALL_MODELS = ("smollm2-135m", "gemma3-270m")
LARGE_MODELS = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
EVERY_MODEL = (
    *SMALL_MODELS,
    *(pytest.param(name, marks=pytest.mark.models) for name in LARGE_MODELS),
)

_REPOSITORY = Path(__file__).resolve().parents[2]


def reference(name: str) -> dict[str, Any]:
    """Return the reference record of a model, or skip the test where there is none."""
    shared = Path(os.environ.get("ELLM_SHARED", _REPOSITORY.parent / "shared"))
    path = shared / "reference" / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"no reference record {path.name}; set ELLM_SHARED to the folder it is in")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def model_path(name: str) -> Path:
    """Return the file of a model, or skip the test where it is not on this machine."""
    file_name = reference(name)["model"]
    for folder in _model_folders():
        if (folder / file_name).is_file():
            return folder / file_name
    pytest.skip(f"no model file {file_name}; fetch it into the cache or set ELLM_MODELS")


def _model_folders() -> list[Path]:
    cache = Path.home() / ".cache"
    folders = [cache / "ellm" / "models", cache / "ellm-models"]
    if "ELLM_MODELS" in os.environ:
        folders.insert(0, Path(os.environ["ELLM_MODELS"]))
    return folders
