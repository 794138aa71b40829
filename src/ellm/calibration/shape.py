"""Sizes of a model's attention, as calibration sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ellm.program.ops import Attention, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a model's attention.

    Attributes:
        num_layers: L.
        num_kv_heads: Hkv.
        num_heads: Hq.
        choosing: By layer, whether it reads the whole context: layers with a sliding window have
            no blocks to choose from.
    """

    num_layers: int
    num_kv_heads: int
    num_heads: int
    choosing: tuple[bool, ...]

    @classmethod
    def of(cls, program: Program) -> Self:
        """Return the sizes of a recorded model."""
        layers = [op for op in program.ops if isinstance(op, Attention)]
        return cls(
            num_layers=program.num_layers,
            num_kv_heads=program.num_kv_heads,
            num_heads=layers[0].num_heads,
            choosing=tuple(op.window is None for op in layers),
        )

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def choosing_heads(self) -> int:
        """KV heads that have blocks to choose from."""
        return sum(self.choosing) * self.num_kv_heads
