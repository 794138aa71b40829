"""Runs any program in NumPy float32: the specification that native kernels are compared with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod

import numpy as np
from numpy.typing import NDArray

from ellm.errors import AbortedError, NativeError
from ellm.program import numpy_choice, numpy_math
from ellm.program.executor import (
    BLOCK_TOKENS,
    GROUP_TOKENS,
    Logits,
    RowChoices,
    SequenceRows,
    Tokens,
    check_groups,
    check_step,
)
from ellm.program.exits import check_added, check_boundary, check_exit, stored_map
from ellm.program.numpy_math import Floats
from ellm.program.ops import (
    Attention,
    Embed,
    GatedLinear,
    Head,
    Linear,
    LinearAdd,
    LinearPart,
    Op,
    Program,
    RmsNorm,
    RmsNormAdd,
    RopeAppend,
    Slot,
)


@dataclass(slots=True)
class _Step:
    """What the ops of one step share."""

    tokens: Tokens
    rows: Sequence[SequenceRows]
    positions: NDArray[np.int64]  # (T,)
    logits_rows: Tokens
    values: list[Floats]  # by slot index, (T, width)
    logits: Logits  # (n, V), set by the head

    def __getitem__(self, slot: Slot) -> Floats:
        return self.values[slot.index]

    def __setitem__(self, slot: Slot, value: Floats) -> None:
        self.values[slot.index][:] = value


class NumpyExecutor:
    """An `Executor` in float32 with float32 KV.

    Results of a row agree to float rounding, not bit for bit, when its step has other rows: BLAS
    sums in an order that depends on the shape.
    """

    def __init__(
        self,
        program: Program,
        weights: Callable[[str], Floats],
        num_blocks: int,
        *,
        max_rows: int = 512,
    ) -> None:
        """Make an executor with empty KV.

        Args:
            program: What to run.
            weights: Returns a tensor by name; called at every use, so it decides what to keep.
            num_blocks: KV blocks of 64 tokens to hold.
            max_rows: Most rows of a step.
        """
        self._program = program
        self._weights = weights
        self._num_blocks = num_blocks
        self._max_rows = max_rows
        shape = (
            program.num_layers,
            num_blocks,
            BLOCK_TOKENS,
            program.num_kv_heads,
            program.head_dim,
        )
        self._keys: Floats = np.zeros(shape, np.float32)
        self._values: Floats = np.zeros(shape, np.float32)
        self._abort = threading.Event()
        self._exits: dict[int, tuple[Floats, Floats]] = {}

    @property
    def max_rows(self) -> int:
        """Most rows of a step."""
        return self._max_rows

    @property
    def num_blocks(self) -> int:
        """KV blocks there are."""
        return self._num_blocks

    @property
    def vocab_size(self) -> int:
        """V, the width of logits."""
        return self._program.vocab_size

    def step(self, tokens: Tokens, rows: Sequence[SequenceRows], logits_rows: Tokens) -> Logits:
        """Run every op over the rows; see `Executor.step`."""
        step = self._new_step(tokens, rows, logits_rows)
        self._run_ops(0, len(self._program.ops), step)
        return step.logits

    def step_trimmed(
        self,
        tokens: Tokens,
        rows: Sequence[SequenceRows],
        logits_rows: Tokens,
        groups: Tokens,
    ) -> Logits:
        """Run a step with a part of the head; see `TrimmedExecutor.step_trimmed`."""
        check_groups(self, groups)
        logits = self.step(tokens, rows, logits_rows)
        logits[:, ~np.isin(np.arange(self.vocab_size) // GROUP_TOKENS, groups)] = -np.inf
        return logits

    @property
    def num_layers(self) -> int:
        """L, the number of layers."""
        return self._program.num_layers

    @property
    def hidden_size(self) -> int:
        """E, the width of the residual rows."""
        return self._program.hidden_size

    def add_exit(self, layer: int, weight: Floats, bias: Floats) -> None:
        """Let steps leave after `layer` layers; see `ExitExecutor.add_exit`."""
        check_exit(self._program, layer, weight, bias)
        self._exits[layer] = (stored_map(weight).astype(np.float32), bias.copy())

    def step_exit(
        self, layer: int, tokens: Tokens, rows: Sequence[SequenceRows], logits_rows: Tokens
    ) -> Logits:
        """Run the first layers and an exit; see `ExitExecutor.step_exit`."""
        step = self._new_step(tokens, rows, logits_rows)
        check_added(layer, self._exits)
        self._run_ops(0, self._program.ops_before(layer), step)
        weight, bias = self._exits[layer]
        step[self._program.head.x] = numpy_math.linear(step[self._program.head.x], weight, bias)
        self._run_ops(len(self._program.ops) - 1, len(self._program.ops), step)
        return step.logits

    def step_hidden(
        self, tokens: Tokens, rows: Sequence[SequenceRows], layers: Sequence[int]
    ) -> Floats:
        """Run a step and return residual rows; see `ExitExecutor.step_hidden`."""
        for layer in layers:
            check_boundary(self._program, layer)
        step = self._new_step(tokens, rows, np.empty(0, np.int32))
        hidden = np.empty((len(layers), tokens.size, self.hidden_size), np.float32)
        done = 0
        for layer in range(self.num_layers + 1):
            self._run_ops(done, self._program.ops_before(layer), step)
            done = self._program.ops_before(layer)
            hidden[[seen == layer for seen in layers]] = step[self._program.head.x]
        return hidden

    def _new_step(self, tokens: Tokens, rows: Sequence[SequenceRows], logits_rows: Tokens) -> _Step:
        check_step(self, tokens, rows, logits_rows)
        self._abort.clear()
        return _Step(
            tokens,
            rows,
            np.concatenate([np.arange(s.start, s.start + s.count) for s in rows]),
            logits_rows,
            [np.empty((tokens.size, s.width), np.float32) for s in self._program.slots],
            np.empty((0, self.vocab_size), np.float32),
        )

    def _run_ops(self, begin: int, end: int, step: _Step) -> None:
        for op in self._program.ops[begin:end]:
            if self._abort.is_set():
                raise AbortedError("the step was aborted between ops")
            self._run(op, step)

    def abort(self) -> None:
        """End the running step before its next op."""
        self._abort.set()

    def forget(self, blocks: NDArray[np.int32]) -> None:
        """Do nothing: blocks hold nothing beside their keys and values."""

    @singledispatchmethod
    def _run(self, op: Op, step: _Step) -> None:  # noqa: ARG002
        raise NativeError(f"the NumPy executor has no op {type(op).__name__}")

    @_run.register
    def _(self, op: Embed, step: _Step) -> None:
        step[op.out] = self._weights(op.weight)[step.tokens] * np.float32(op.scale)

    @_run.register
    def _(self, op: RmsNorm, step: _Step) -> None:
        step[op.out] = numpy_math.rms_norm(step[op.x], self._weights(op.weight), op.epsilon)

    @_run.register
    def _(self, op: RmsNormAdd, step: _Step) -> None:
        normed = numpy_math.rms_norm(step[op.x], self._weights(op.weight), op.epsilon)
        step[op.residual] += normed

    @_run.register
    def _(self, op: Linear, step: _Step) -> None:
        x = step[op.x]
        step[op.out] = np.concatenate([self._linear(part, x) for part in op.parts], axis=1)

    @_run.register
    def _(self, op: LinearAdd, step: _Step) -> None:
        step[op.residual] += self._linear(op.part, step[op.x])

    @_run.register
    def _(self, op: GatedLinear, step: _Step) -> None:
        activate = numpy_math.ACTIVATIONS[op.activation]
        x = step[op.x]
        step[op.out] = activate(self._linear(op.gate, x)) * self._linear(op.up, x)

    @_run.register
    def _(self, op: RopeAppend, step: _Step) -> None:
        heads = step[op.qkv].reshape(step.tokens.size, -1, op.head_dim)
        k_end = op.num_heads + op.num_kv_heads
        q, k = heads[:, : op.num_heads], heads[:, op.num_heads : k_end]
        if op.q_norm is not None:
            q[:] = numpy_math.rms_norm(q, self._weights(op.q_norm), op.epsilon)
        if op.k_norm is not None:
            k[:] = numpy_math.rms_norm(k, self._weights(op.k_norm), op.epsilon)
        table = self._program.rope_tables[op.rope_table]
        q[:] = numpy_math.rotate(q, step.positions, table)
        k[:] = numpy_math.rotate(k, step.positions, table)
        blocks = np.concatenate(
            [s.blocks[np.arange(s.start, s.start + s.count) // BLOCK_TOKENS] for s in step.rows]
        )
        places = step.positions % BLOCK_TOKENS
        self._keys[op.layer, blocks, places] = k
        self._values[op.layer, blocks, places] = heads[:, k_end:]

    @_run.register
    def _(self, op: Attention, step: _Step) -> None:
        heads = step[op.qkv].reshape(step.tokens.size, -1, op.head_dim)
        first_row = 0
        for sequence in step.rows:
            rows = slice(first_row, first_row + sequence.count)
            first_row = rows.stop
            q = heads[rows, : op.num_heads]
            if sequence.choices is not None and op.window is None:
                out = self._attend_chosen(op, sequence, sequence.choices, q)
            else:
                out = self._attend_sequence(op, sequence, q)
            step[op.out][rows] = out.reshape(sequence.count, -1)

    @_run.register
    def _(self, op: Head, step: _Step) -> None:
        x = step[op.x][step.logits_rows]
        normed = numpy_math.rms_norm(x, self._weights(op.norm_weight), op.epsilon)
        step.logits = self._linear(LinearPart(op.weight), normed)

    def _linear(self, part: LinearPart, x: Floats) -> Floats:
        bias = None if part.bias is None else self._weights(part.bias)
        return numpy_math.linear(x, self._weights(part.weight), bias)

    def _attend_chosen(
        self, op: Attention, sequence: SequenceRows, choices: RowChoices, q: Floats
    ) -> Floats:
        out = np.empty_like(q)
        for row in range(sequence.count):
            end = sequence.start + row + 1
            blocks = sequence.blocks[: -(-end // BLOCK_TOKENS)]
            k, v = self._keys[op.layer, blocks], self._values[op.layer, blocks]
            out[row] = numpy_choice.attend_row(
                q[row] * np.float32(op.scale),
                k,
                v,
                end=end,
                choices=choices,
                row=row,
                layer=op.layer,
            )
        return out

    def _attend_sequence(self, op: Attention, sequence: SequenceRows, q: Floats) -> Floats:
        end = sequence.start + sequence.count
        first_seen = 0 if op.window is None else max(0, sequence.start - op.window + 1)
        first_block = first_seen // BLOCK_TOKENS
        blocks = sequence.blocks[first_block : -(-end // BLOCK_TOKENS)]
        first = first_block * BLOCK_TOKENS
        kv_shape = (-1, op.num_kv_heads, op.head_dim)
        k = self._keys[op.layer, blocks].reshape(kv_shape)[: end - first]
        v = self._values[op.layer, blocks].reshape(kv_shape)[: end - first]
        row = np.arange(sequence.start, end)[:, None]
        token = np.arange(first, end)[None, :]
        visible = token <= row
        if op.window is not None:
            visible &= token > row - op.window
        return numpy_math.attend(q, k, v, scale=op.scale, visible=visible)
