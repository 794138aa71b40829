"""Every architecture by its GGUF name, and the one way to record a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ellm.config.model import ModelConfig
from ellm.errors import UnsupportedError
from ellm.models.gemma3 import record_gemma3
from ellm.models.llama import record_llama
from ellm.models.qwen2 import record_qwen2
from ellm.models.tensors import HasShape, ModelTensors
from ellm.program.ops import Program

ARCHITECTURES: Mapping[str, Callable[[ModelConfig, ModelTensors], Program]] = MappingProxyType(
    {"llama": record_llama, "qwen2": record_qwen2, "gemma3": record_gemma3}
)


def build_program(
    config: ModelConfig, tensors: Mapping[str, HasShape], *, path: str = ""
) -> Program:
    """Record the program of a model and check that its file has exactly the tensors it reads.

    Args:
        config: The hyper-parameters.
        tensors: Every tensor of the file by name.
        path: The file, named in errors.

    Raises:
        UnsupportedError: The architecture, a feature of it or a tensor is not implemented.
        InvalidModelError: A tensor is missing or its shape does not follow from `config`.
    """
    record = ARCHITECTURES.get(config.architecture)
    if record is None:
        raise UnsupportedError(
            f"{path or 'model data'}: architecture {config.architecture!r}; "
            f"known are {', '.join(ARCHITECTURES)}"
        )
    named = ModelTensors(tensors, path=path)
    program = record(config, named)
    named.check_all_used()
    return program
