"""Finds the real model files and the reference figures that belong to them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ellm.hub import REGISTRY, locate_entry

SMALL_MODELS = ("smollm2-135m", "gemma3-270m")
LARGE_MODELS = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
EVERY_MODEL = (
    *SMALL_MODELS,
    *(pytest.param(name, marks=pytest.mark.models) for name in LARGE_MODELS),
)

_RECORDS = Path(__file__).resolve().parents[1] / "golden" / "records"


def reference(name: str) -> dict[str, Any]:
    """Return the reference record of a model."""
    record: dict[str, Any] = json.loads((_RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    return record


def model_path(name: str) -> Path:
    """Return the file of a model.

    Where it is not on this machine the test is skipped, or fails if `ELLM_REQUIRE_MODELS` is set,
    as `make test` does: a run that looked at no model must not look like one that passed.
    """
    path = locate_entry(REGISTRY[name])
    if path is not None:
        return path
    message = f"model {name} is not here; fetch it with `ellm pull {name}`"
    if os.environ.get("ELLM_REQUIRE_MODELS"):
        pytest.fail(message)
    pytest.skip(message)
