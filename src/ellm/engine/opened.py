"""What an `LLM` holds while it is open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ellm.engine.core import EngineCore
from ellm.engine.parts import LoadedModel
from ellm.engine.sequence import Sequence
from ellm.sparse.policy import AttentionPolicy


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """What closing lets go of."""

    model: LoadedModel
    core: EngineCore
    attention: AttentionPolicy


def raise_error_of(sequences: Iterable[Sequence]) -> None:
    """Raise what made one of `sequences` fail, if something did."""
    for sequence in sequences:
        if sequence.error is not None:
            raise sequence.error
