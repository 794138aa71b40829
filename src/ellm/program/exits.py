"""Leaving a program early: a fitted map from a layer's rows to the head's input, then the head."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ellm.errors import RequestError
from ellm.program.executor import Executor, Floats, Logits, SequenceRows, Tokens
from ellm.program.ops import Program

# How the map is kept and multiplied. float32 takes twice the memory and agrees as often: over 512
# tokens and three exits each, on SmolLM2-135M at one token more, on Qwen2.5-Coder-0.5B at two.
EXIT_FORMAT = "f16"
_LARGEST = float(np.finfo(np.float16).max)


@runtime_checkable
class ExitExecutor(Executor, Protocol):
    """An executor whose steps can leave the program after some layers.

    Attributes:
        num_layers: L; layer boundaries are 0 (before the first layer) to L (before the head).
        hidden_size: E, the width of the residual rows at a boundary.
    """

    @property
    def num_layers(self) -> int:
        """L, the number of layers."""

    @property
    def hidden_size(self) -> int:
        """E, the width of the residual rows."""

    def add_exit(self, layer: int, weight: Floats, bias: Floats) -> None:
        """Let steps leave after `layer` layers, in place of an exit that was there.

        Args:
            layer: Layers that such a step runs, 1 to L.
            weight: float32 (E, E): the head reads weight @ row + bias. It is kept as float16.
            bias: float32 (E,).

        Raises:
            RequestError: The arguments do not fit the program, or a number has no float16.
        """

    def step_exit(
        self, layer: int, tokens: Tokens, rows: Sequence[SequenceRows], logits_rows: Tokens
    ) -> Logits:
        """Run the first `layer` layers, the exit's map and the head; return logits (n, V).

        As `Executor.step` in everything else: a row's result depends on nothing beside it. The
        rows write keys and values of the layers that run, and no others; a later `step` over the
        same positions leaves what it would have left without them. Until then no row may read
        those positions but rows of exits at this layer or below it.

        Raises:
            RequestError: There is no exit at `layer`, or as `Executor.step` does.
            CapacityError: As `Executor.step`.
            AbortedError: As `Executor.step`.
        """

    def step_hidden(
        self, tokens: Tokens, rows: Sequence[SequenceRows], layers: Sequence[int]
    ) -> Floats:
        """Run a step without logits; return its residual rows, float32 (len(layers), T, E).

        Args:
            tokens: As in `Executor.step`.
            rows: As in `Executor.step`.
            layers: After how many layers to look, 0 to L; after L is what the head reads, before
                its norm.

        Raises:
            RequestError: A layer is out of range, or as `Executor.step` does.
            CapacityError: As `Executor.step`.
            AbortedError: As `Executor.step`.
        """


def check_exit(program: Program, layer: int, weight: Floats, bias: Floats) -> None:
    """Check the arguments of `ExitExecutor.add_exit`.

    Raises:
        RequestError: They do not fit the program, or a number has no float16.
    """
    check_boundary(program, layer, least=1)
    size = program.hidden_size
    if weight.shape != (size, size) or bias.shape != (size,):
        raise RequestError(
            f"an exit of shapes {weight.shape} and {bias.shape}; expected ({size}, {size}) and "
            f"({size},)"
        )
    # NaN fails the comparison.
    if not (np.abs(weight).max() <= _LARGEST and np.isfinite(bias).all()):
        raise RequestError(f"an exit with numbers that are not finite or above {_LARGEST:g}")


def check_added(layer: int, exits: Collection[int]) -> None:
    """Check that there is an exit after `layer` layers.

    Raises:
        RequestError: There is none.
    """
    if layer not in exits:
        raise RequestError(f"no exit at layer {layer}; there are {sorted(exits)}")


def check_boundary(program: Program, layer: int, *, least: int = 0) -> None:
    """Check that `layer` is the number of a layer boundary.

    Raises:
        RequestError: It is not.
    """
    if not least <= layer <= program.num_layers:
        raise RequestError(f"layer boundary {layer}; expected {least} to {program.num_layers}")


def stored_map(weight: Floats) -> NDArray[np.float16]:
    """Return the weight (E, E) of an exit as it is kept and multiplied."""
    return weight.astype(np.float16)
