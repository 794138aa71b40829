"""Tiny models whose upper layers do nothing, and executors whose steps take written-down times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ellm.program.executor import Floats, Logits, SequenceRows, Tokens
from ellm.program.exits import ExitExecutor
from tests.support.tiny_models import TinyModel, tiny_model

# What a sub-layer adds to the residual rows is a product with one of these, or such a norm of it.
_OUTPUTS = (
    *("attn_output.weight", "ffn_down.weight"),
    *("post_attention_norm.weight", "post_ffw_norm.weight"),
)


def idle_above(architecture: str, layer: int, **changes: Any) -> TinyModel:
    """Return a float32 model whose layers from `layer` on change nothing."""
    return _with_outputs(tiny_model(architecture, **changes), layer, 0.0)


def busy(architecture: str, **changes: Any) -> TinyModel:
    """Return a float32 model of which every layer changes much: no exit can know the end."""
    return _with_outputs(tiny_model(architecture, **changes), 0, 8.0)


def _with_outputs(model: TinyModel, first_layer: int, factor: float) -> TinyModel:
    for name, tensor in model.tensors.items():
        part = name.split(".", 2)
        if part[0] == "blk" and int(part[1]) >= first_layer and part[2] in _OUTPUTS:
            tensor.data.view(np.float32)[:] *= np.float32(factor)
    return model


class TimedExecutor:
    """Runs steps in another executor; its clock goes by what they are said to cost.

    A step of n rows takes 1 + 0.05 (n - 1) seconds; one that leaves after l of L layers takes
    0.1 + 0.9 l / L.
    """

    def __init__(self, executor: ExitExecutor) -> None:
        self._executor = executor
        self.seconds = 0.0
        self.steps = 0
        self.max_rows = executor.max_rows
        self.num_blocks = executor.num_blocks
        self.vocab_size = executor.vocab_size
        self.num_layers = executor.num_layers
        self.hidden_size = executor.hidden_size

    def clock(self) -> float:
        return self.seconds

    def step(self, tokens: Tokens, rows: Sequence[SequenceRows], logits_rows: Tokens) -> Logits:
        self._take(1 + 0.05 * (tokens.size - 1))
        return self._executor.step(tokens, rows, logits_rows)

    def step_exit(
        self, layer: int, tokens: Tokens, rows: Sequence[SequenceRows], logits_rows: Tokens
    ) -> Logits:
        self._take(0.1 + 0.9 * layer / self.num_layers)
        return self._executor.step_exit(layer, tokens, rows, logits_rows)

    def step_hidden(
        self, tokens: Tokens, rows: Sequence[SequenceRows], layers: Sequence[int]
    ) -> Floats:
        self._take(1 + 0.05 * (tokens.size - 1))
        return self._executor.step_hidden(tokens, rows, layers)

    def add_exit(self, layer: int, weight: Floats, bias: Floats) -> None:
        self._executor.add_exit(layer, weight, bias)

    def abort(self) -> None:
        self._executor.abort()

    def forget(self, blocks: np.ndarray) -> None:
        self._executor.forget(blocks)

    def _take(self, seconds: float) -> None:
        self.seconds += seconds
        self.steps += 1
