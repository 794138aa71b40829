"""Counts the memory of a model before any of it is taken (law 5)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ellm import native
from ellm.program.executor import BLOCK_TOKENS
from ellm.program.exits import EXIT_FORMAT
from ellm.program.ops import Attention, GatedLinear, Head, Linear, LinearAdd, Program
from ellm.program.weights import ImageLayout, WeightSource

_SEGMENT_TOKENS = 512
_MAX_QUERIES = 8
_ITEM_QUERIES = 64
_SPLIT_ROWS = 8
_WAVE_ROWS = 8
_STEPS_OF_SHARES = 33 * 16 + 1
_OPEN_BLOCKS = 8
_EXPANDED_GROUP_BYTES = 704
_WEIGHT_CACHE_BYTES = 256 << 10
_TILES_OF_GATED_UNIT = 4


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes that a model will take.

    Attributes:
        weights_bytes: The repacked image.
        arena_bytes: Slots, scratch and rotation tables.
        kv_bytes: All KV blocks.
        exits_bytes: Exits from shallow layers.
    """

    weights_bytes: int
    arena_bytes: int
    kv_bytes: int
    exits_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Everything together."""
        return self.weights_bytes + self.arena_bytes + self.kv_bytes + self.exits_bytes


def memory_plan(
    source: WeightSource,
    program: Program,
    *,
    threads: int,
    num_blocks: int,
    max_rows: int,
    kv_type: str,
    max_tokens: int | None = None,
    num_exits: int = 0,
) -> MemoryPlan:
    """Return the bytes `load_native` will take with the same arguments, and exits added to it.

    Raises:
        UnsupportedError: A matrix has a shape that its format cannot hold.
    """
    kv = (program.num_layers, program.num_kv_heads, program.head_dim, kv_type)
    positions = max_positions(num_blocks, max_tokens)
    # int8 blocks have a float form while rows are in them: those of a step, two before, and one
    # more for each of a few sequences beside.
    open_blocks = min(num_blocks, -(-max_rows // BLOCK_TOKENS) + _OPEN_BLOCKS)
    open_bytes = native.kv_float_block_bytes(kv) * open_blocks
    tables = sum(8 * positions * len(t.inverse_frequencies) for t in program.rope_tables)
    return MemoryPlan(
        weights_bytes=ImageLayout.plan(program, source).total_bytes,
        arena_bytes=arena_bytes(source, program, threads, positions, max_rows, kv_type) + tables,
        kv_bytes=native.kv_block_bytes(kv) * num_blocks + open_bytes,
        exits_bytes=exits_bytes(program, max_rows=max_rows, num_exits=num_exits),
    )


def kv_block_bytes(program: Program, kv_type: str) -> int:
    """Return the bytes of a KV block of 64 tokens."""
    kv = (program.num_layers, program.num_kv_heads, program.head_dim, kv_type)
    return native.kv_block_bytes(kv)


def max_positions(num_blocks: int, max_tokens: int | None) -> int:
    """Return the positions that tables and scratch are made for, a multiple of 64."""
    blocks = num_blocks if max_tokens is None else min(num_blocks, -(-max_tokens // BLOCK_TOKENS))
    return blocks * BLOCK_TOKENS


def exits_bytes(program: Program, *, max_rows: int, num_exits: int) -> int:
    """Return the bytes of exits: a map each, and the slot they share; scratch is the program's."""
    if not num_exits:
        return 0
    size = program.hidden_size
    slot = -(-max_rows * size * 4 // 64) * 64
    return slot + num_exits * native.image_bytes(EXIT_FORMAT, size, size)


def arena_bytes(
    source: WeightSource,
    program: Program,
    threads: int,
    max_positions: int,
    max_rows: int,
    kv_type: str,
) -> int:
    """Return the bytes of slots and scratch: the arithmetic of native/executor/executor.cc."""
    quantized = quantized_slots(source, program)
    slots = 0
    for slot in program.slots:
        slots += -(-max_rows * slot.width * 4 // 64) * 64
        if slot.index in quantized:
            slots += max_rows * _quantized_row_bytes(slot.width)

    def expanded(weight: str, tiles: int) -> int:
        return threads * _expanded_group_bytes(source, weight, tiles)

    scratch = [0]
    for op in program.ops:
        match op:
            case Head(x=x, weight=weight):
                normed = max_rows * (4 * x.width + _quantized_row_bytes(x.width))
                scratch.append(normed + expanded(weight, 1))
            case Attention():
                scratch.append(_attention_scratch(op, threads, max_positions, max_rows))
                if kv_type == "int8" and op.window is None:
                    scratch.append(_chosen_scratch(op, threads, max_positions))
            case Linear(parts=parts):
                scratch += [expanded(part.weight, 1) for part in parts]
            case LinearAdd(part=part):
                scratch.append(expanded(part.weight, 1))
            case GatedLinear(gate=gate, up=up):
                scratch += [expanded(part.weight, _TILES_OF_GATED_UNIT) for part in (gate, up)]
    return slots + max(scratch)


def quantized_slots(source: WeightSource, program: Program) -> set[int]:
    """Return the slots that an integer linear reads."""
    slots: set[int] = set()
    for op in program.ops:
        match op:
            case Linear(x=x, parts=parts) if any(_is_integer(source, p.weight) for p in parts):
                slots.add(x.index)
            case LinearAdd(x=x, part=part) if _is_integer(source, part.weight):
                slots.add(x.index)
            case GatedLinear(x=x, gate=gate, up=up):
                if any(_is_integer(source, part.weight) for part in (gate, up)):
                    slots.add(x.index)
    return slots


@functools.cache
def _integer_formats() -> frozenset[str]:
    return frozenset(item["name"] for item in native.weight_formats() if item["integer_codes"])


def _is_integer(source: WeightSource, weight: str) -> bool:
    return source.tensors[weight].type_name in _integer_formats()


def _expanded_group_bytes(source: WeightSource, weight: str, tiles: int) -> int:
    """Return the scratch of one thread for expanded tiles: native/ops/linear.cc."""
    if not _is_integer(source, weight):
        return 0
    _, cols = source.tensors[weight].shape
    unit_bytes = tiles * (cols // 32) * _EXPANDED_GROUP_BYTES
    return max(_WEIGHT_CACHE_BYTES // unit_bytes, 1) * unit_bytes


def _quantized_row_bytes(cols: int) -> int:
    return -(-(cols + cols // 32 * 24) // 64) * 64


def _attention_scratch(op: Attention, threads: int, max_positions: int, max_rows: int) -> int:
    dim = -(-op.head_dim // 16) * 16
    result = dim + 16
    group = op.num_heads // op.num_kv_heads
    item_rows = 1
    while 2 * item_rows * group <= _ITEM_QUERIES:
        item_rows *= 2
    item_queries = item_rows * group
    per_thread = _MAX_QUERIES * (dim + _SEGMENT_TOKENS) + (item_queries + _MAX_QUERIES) * result
    pieces = -(-max_positions // _SEGMENT_TOKENS) + 1
    split = min(_SPLIT_ROWS, max_rows) * op.num_heads * pieces
    return 4 * (threads * per_thread + split * result)


def _chosen_scratch(op: Attention, threads: int, max_positions: int) -> int:
    """Return the scratch for rows that choose their blocks: native/ops/chosen_scratch.cc."""
    dim = -(-op.head_dim // 16) * 16
    result = dim + 16
    group = op.num_heads // op.num_kv_heads
    segments = -(-max_positions // _SEGMENT_TOKENS)
    blocks = (segments + 1) // 2 * 2 * (_SEGMENT_TOKENS // BLOCK_TOKENS)
    per_head = (segments + 2) * result + 2 * blocks + blocks * BLOCK_TOKENS + 3
    row = op.num_heads * per_head + op.num_kv_heads * (1 + blocks)
    row = -(-row // 16) * 16
    chooser = 4 * (_STEPS_OF_SHARES + 1) + 6 * blocks + 4 * group
    thread = _MAX_QUERIES * (dim + _SEGMENT_TOKENS + result) + (group + 3) * blocks
    return 4 * (_WAVE_ROWS * row + threads * (thread + -(-chooser // 64) * 16))
