"""From a model reference to a checked header."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ellm.config.model import ModelConfig
from ellm.engine.parts import LoadProgress
from ellm.formats.gguf import GgufFile
from ellm.formats.gguf.model_config import read_model_config
from ellm.hub import resolve
from ellm.models import ARCHITECTURES, build_program
from ellm.program.ops import Program
from ellm.tokenizers.collector import collector_paused
from ellm.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model file whose header was read: everything but the weights.

    Attributes:
        file: The GGUF file.
        config: Hyper-parameters.
        program: What a step computes.
        tokenizer: Text to tokens and back.
        opening_seconds: How long this took.
    """

    file: GgufFile
    config: ModelConfig
    program: Program
    tokenizer: Tokenizer
    opening_seconds: float


def open_model(model: str | None, progress: LoadProgress | None = None) -> OpenedModel:
    """Read and check a model's header, so that prompts can be counted before weights are loaded.

    Args:
        model: A path, a registry name, a hub reference, or None for the default.
        progress: Called with bytes done and in total while it is fetched.

    Raises:
        EllmError: See `LLM`.
    """
    path = resolve(model) if progress is None else resolve(model, progress)
    started = time.perf_counter()
    with collector_paused():
        file = GgufFile.open(path)
        config = read_model_config(file, ARCHITECTURES)
        program = build_program(config, file.tensors, path=str(path))
        tokenizer = Tokenizer.from_gguf(file.metadata, path=str(path))
    return OpenedModel(file, config, program, tokenizer, time.perf_counter() - started)
