"""Runs a program in the native core: one call per step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ellm import native
from ellm.errors import UnsupportedError
from ellm.program.executor import (
    BLOCK_TOKENS,
    Estimate,
    Floats,
    Logits,
    Observation,
    RowChoices,
    SequenceRows,
    Tokens,
    check_groups,
    check_step,
)
from ellm.program.exits import EXIT_FORMAT, check_added, check_boundary, check_exit, stored_map
from ellm.program.memory import max_positions, quantized_slots
from ellm.program.ops import (
    Attention,
    Embed,
    GatedLinear,
    Head,
    Linear,
    LinearAdd,
    LinearPart,
    Program,
    RmsNorm,
    RmsNormAdd,
    RopeAppend,
    RopeStyle,
)
from ellm.program.weights import Progress, Weights, WeightSource, load_weights

_NO_LIMIT = 2**31 - 1
_NO_ROWS = np.empty(0, dtype=np.int32)


class NativeExecutor:
    """An `Executor` whose ops were handed to the native core once.

    Attributes:
        isa: Instruction set of the kernels.
        threads: Threads of the pool.
        pinned_threads: Those of them that could be pinned to a CPU.
        weights_bytes: Bytes of the repacked image.
        kv_bytes: Bytes of all KV blocks; taken from the system as they are used.
        block_bytes: Bytes of one KV block.
        arena_bytes: Bytes of slots and scratch.
        num_layers: L.
        hidden_size: E.
    """

    def __init__(
        self,
        program: Program,
        weights: Weights,
        source: WeightSource,
        *,
        cpus: Sequence[int],
        num_blocks: int,
        max_rows: int,
        max_tokens: int | None = None,
        kv_type: str = "f32",
        isa: str | None = None,
    ) -> None:
        """Record `program` natively.

        Args:
            program: What to run.
            weights: Its matrices and vectors.
            source: The file they came from, for the formats.
            cpus: One pinned thread each.
            num_blocks: KV blocks of 64 tokens.
            max_rows: Most rows of a step.
            max_tokens: Longest sequence; None is all blocks.
            kv_type: "f32", "f16" or "int8".
            isa: Instruction set; None is `ELLM_ISA` or the highest this CPU has.

        Raises:
            UnsupportedError: The program reads a slot in a form its writer cannot make.
            ConfigError: The instruction set is not there.
            CapacityError: The system refuses the memory.
        """
        _check_quantizable(program, quantized_slots(source, program))
        self.max_rows = max_rows
        self.num_blocks = num_blocks
        self.vocab_size = program.vocab_size
        self.isa = isa or native.choose_isa()
        self.threads = len(cpus)
        self.weights_bytes = weights.image_bytes
        self._weights = weights
        self._program = program
        self._cpus = list(cpus)
        self._exits: dict[int, int] = {}  # bytes of the map, by layer
        self.num_layers, self.hidden_size = program.num_layers, program.hidden_size
        self.block_bytes = native.kv_block_bytes(_kv_shape(program, kv_type))
        self._native = native.executor(
            isa=self.isa,
            cpus=self._cpus,
            max_rows=max_rows,
            max_positions=max_positions(num_blocks, max_tokens),
            kv=_kv_shape(program, kv_type),
            num_blocks=num_blocks,
            vocab_size=program.vocab_size,
            slot_widths=[slot.width for slot in program.slots],
        )
        self._read_bytes = 0
        self._record(program)
        self._native.finish()
        self.kv_bytes: int = self._native.kv_bytes
        self.arena_bytes: int = self._native.arena_bytes
        self.pinned_threads: int = self._native.pinned_threads

    def step(self, tokens: Tokens, rows: Sequence[SequenceRows], logits_rows: Tokens) -> Logits:
        """Run every op over the rows; see `Executor.step`."""
        check_step(self, tokens, rows, logits_rows)
        logits = self._empty_logits(logits_rows.size)
        self._native.step(tokens, _native_rows(rows), logits_rows, logits)
        return logits

    def step_trimmed(
        self,
        tokens: Tokens,
        rows: Sequence[SequenceRows],
        logits_rows: Tokens,
        groups: Tokens,
    ) -> Logits:
        """Run a step with a part of the head; see `TrimmedExecutor.step_trimmed`."""
        check_step(self, tokens, rows, logits_rows)
        check_groups(self, groups)
        logits = self._empty_logits(logits_rows.size)
        logits.fill(-np.inf)
        self._native.step(tokens, _native_rows(rows), logits_rows, logits, head_tiles=groups)
        return logits

    def add_exit(self, layer: int, weight: Floats, bias: Floats) -> None:
        """Let steps leave after `layer` layers; see `ExitExecutor.add_exit`."""
        check_exit(self._program, layer, weight, bias)
        size, head = self.hidden_size, self._program.head
        image = np.empty(native.image_bytes(EXIT_FORMAT, size, size), dtype=np.uint8)
        source = stored_map(weight).reshape(-1).view(np.uint8)
        native.repack(EXIT_FORMAT, size, size, source, image, self._cpus)
        self._native.add_exit(
            self._program.ops_before(layer),
            head.x.index,
            native.weight(EXIT_FORMAT, size, size, image, bias),
            self._weights.vector(head.norm_weight),
            head.epsilon,
            self._matrix(LinearPart(head.weight), read=False),
        )
        self._exits[layer] = image.size

    @property
    def exits_bytes(self) -> int:
        """Bytes of the exits that were added."""
        slot_bytes: int = self._native.arena_bytes - self.arena_bytes
        return slot_bytes + sum(self._exits.values())

    def step_exit(
        self, layer: int, tokens: Tokens, rows: Sequence[SequenceRows], logits_rows: Tokens
    ) -> Logits:
        """Run the first layers and an exit; see `ExitExecutor.step_exit`."""
        check_step(self, tokens, rows, logits_rows)
        check_added(layer, self._exits)
        logits = self._empty_logits(logits_rows.size)
        leave = self._program.ops_before(layer)
        self._native.step(tokens, _native_rows(rows), logits_rows, logits, leave)
        return logits

    def step_hidden(
        self, tokens: Tokens, rows: Sequence[SequenceRows], layers: Sequence[int]
    ) -> Floats:
        """Run a step and return residual rows; see `ExitExecutor.step_hidden`."""
        check_step(self, tokens, rows, _NO_ROWS)
        hidden = np.empty((len(layers), tokens.size, self.hidden_size), dtype=np.float32)
        taps = []
        for layer, out in zip(layers, hidden, strict=True):
            check_boundary(self._program, layer)
            taps.append((self._program.ops_before(layer), self._program.head.x.index, out))
        none = self._empty_logits(0)
        self._native.step(tokens, _native_rows(rows), _NO_ROWS, none, None, taps)
        return hidden

    def _empty_logits(self, rows: int) -> Logits:
        return np.empty((rows, self.vocab_size), dtype=np.float32)

    def abort(self) -> None:
        """End the running step before its next op, from any thread."""
        self._native.abort()

    def forget(self, blocks: NDArray[np.int32]) -> None:
        """Give back what int8 blocks hold beside their stored form; their sequences have ended."""
        self._native.forget(np.ascontiguousarray(blocks))

    def read_block(self, block: int) -> NDArray[np.uint8]:
        """Return a full KV block as it is stored, uint8 (block_bytes,)."""
        stored = np.empty(self.block_bytes, dtype=np.uint8)
        self._native.read_block(block, stored)
        return stored

    def write_block(self, block: int, stored: NDArray[np.uint8]) -> None:
        """Put a full KV block back that `read_block` returned, here or in another process.

        Rows can go on behind it, not within it: what they saw of it in float is not stored.
        """
        self._native.write_block(block, np.ascontiguousarray(stored))

    def op_seconds(self) -> list[float]:
        """Return the seconds that each op of the last step took, in the program's order."""
        seconds: list[float] = self._native.op_seconds()
        return seconds

    def bytes_per_token(self, depth_tokens: int) -> int:
        """Return the bytes that decoding one token reads: weights, and KV of `depth_tokens`.

        Sliding windows are not subtracted: the figure is an upper bound for models that have them.
        """
        return self._read_bytes + self.block_bytes * depth_tokens // BLOCK_TOKENS

    def bytes_saved(self, estimate: Estimate, *, blocks_total: int, blocks_read: int) -> int:
        """Return the bytes that rows did not read of the blocks of one KV head each.

        Args:
            estimate: What they chose by.
            blocks_total: Blocks before the rows' own, over rows, layers and KV heads.
            blocks_read: Those of them that were read.
        """
        program = self._program
        whole = self.block_bytes // (program.num_layers * program.num_kv_heads)
        dim = -(-program.head_dim // 16) * 16
        # native/kernels/attention/int8_layout.h. Of the upper bits a scan reads what the queries
        # ask for: two thirds on Qwen2.5-Coder-1.5B.
        estimated = {
            Estimate.EXACT: 74 * dim,
            Estimate.SCAN: 31 * dim,
            Estimate.MEAN: 6 * dim,
        }[estimate]
        again = whole - estimated if estimate is Estimate.EXACT else whole
        return blocks_total * (whole - estimated) - blocks_read * again

    def _record(self, program: Program) -> None:
        core = self._native
        tables = [
            core.add_rope_table(
                list(table.inverse_frequencies),
                table.magnitude,
                table.style is RopeStyle.INTERLEAVED,
            )
            for table in program.rope_tables
        ]
        for op in program.ops:
            match op:
                case Embed(weight, scale, out):
                    core.add_embed(self._matrix(LinearPart(weight), read=False), scale, out.index)
                case RmsNorm(x, weight, epsilon, out):
                    core.add_rms_norm(x.index, self._weights.vector(weight), epsilon, out.index)
                case RmsNormAdd(x, weight, epsilon, residual):
                    vector = self._weights.vector(weight)
                    core.add_rms_norm_add(x.index, vector, epsilon, residual.index)
                case Linear(x, parts, out):
                    core.add_linear(x.index, [self._matrix(part) for part in parts], out.index)
                case LinearAdd(x, part, residual):
                    core.add_linear_add(x.index, self._matrix(part), residual.index)
                case GatedLinear(x, gate, up, activation, out):
                    matrices = self._matrix(gate), self._matrix(up)
                    core.add_gated_linear(x.index, *matrices, activation.value, out.index)
                case RopeAppend():
                    self._record_rope(op, tables[op.rope_table])
                case Attention():
                    core.add_attention(
                        op.qkv.index, op.layer, op.num_heads, op.scale, op.window, op.out.index
                    )
                case Head(x, norm_weight, epsilon, weight):
                    norm = self._weights.vector(norm_weight)
                    core.add_head(x.index, norm, epsilon, self._matrix(LinearPart(weight)))

    def _record_rope(self, op: RopeAppend, table: int) -> None:
        norms = [
            None if name is None else self._weights.vector(name) for name in (op.q_norm, op.k_norm)
        ]
        self._native.add_rope_append(
            op.qkv.index, op.layer, op.num_heads, table, *norms, op.epsilon
        )

    def _matrix(self, part: LinearPart, *, read: bool = True) -> Any:
        place = self._weights.place(part.weight)
        if read:
            self._read_bytes += place.nbytes
        bias = None if part.bias is None else self._weights.vector(part.bias)
        image = self._weights.matrix(part.weight)
        return native.weight(place.type_name, place.rows, place.cols, image, bias)


def load_native(
    source: WeightSource,
    program: Program,
    *,
    cpus: Sequence[int],
    num_blocks: int,
    max_rows: int,
    max_tokens: int | None = None,
    kv_type: str = "f32",
    mapped: bool = True,
    progress: Progress | None = None,
) -> NativeExecutor:
    """Load the weights of `program` from `source` and return an executor for them.

    Raises:
        InvalidModelError: The model file changed while it was read.
        UnsupportedError: A matrix or slot has a shape that its format cannot hold.
        CapacityError: The system refuses the memory.
    """
    weights = load_weights(program, source, cpus=cpus, mapped=mapped, progress=progress)
    return NativeExecutor(
        program,
        weights,
        source,
        cpus=cpus,
        num_blocks=num_blocks,
        max_rows=max_rows,
        max_tokens=max_tokens,
        kv_type=kv_type,
    )


def _native_rows(rows: Sequence[SequenceRows]) -> list[tuple[Any, ...]]:
    """Return what a native step takes."""
    return [
        (np.ascontiguousarray(run.blocks), run.start, run.count, _native_choices(run.choices))
        for run in rows
    ]


def _native_choices(choices: RowChoices | None) -> tuple[Any, ...] | None:
    """Return what native/bindings/choice.h takes."""
    if choices is None:
        return None
    rule = choices.rule
    seen = choices.observed or Observation()
    max_blocks = _NO_LIMIT if rule.max_blocks is None else rule.max_blocks
    factors = (None, None) if rule.heads is None else (rule.heads.allowances, rule.heads.scales)
    observed = (seen.shares, seen.exact, seen.scan, seen.mean)
    return (rule.estimate.value, rule.mass, max_blocks, *factors, choices.counts, *observed)


def _kv_shape(program: Program, kv_type: str) -> native.KvShape:
    return (program.num_layers, program.num_kv_heads, program.head_dim, kv_type)


def _check_quantizable(program: Program, quantized: set[int]) -> None:
    """Refuse a program that reads a slot as int8 which only float writers fill."""
    for op in program.ops:
        match op:
            case Embed(out=slot) | LinearAdd(residual=slot) | RmsNormAdd(residual=slot):
                if slot.index in quantized:
                    raise UnsupportedError(
                        f"slot {slot.name!r} is read by an integer matrix without a norm before it"
                    )
