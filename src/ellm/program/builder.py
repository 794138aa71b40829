"""Records a program: architecture files call these methods in the order the model computes."""

from __future__ import annotations

from ellm.program.ops import (
    Activation,
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
    RopeTable,
    Slot,
)


class ProgramBuilder:
    """Appends ops and hands out slots; `finish` returns the immutable program."""

    def __init__(
        self, *, vocab_size: int, num_heads: int, num_kv_heads: int, head_dim: int, epsilon: float
    ) -> None:
        """Fix what every layer shares: V, Hq, Hkv, D and the norms' epsilon."""
        self._vocab_size = vocab_size
        self._num_heads = num_heads
        self._num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        self._epsilon = epsilon
        self._ops: list[Op] = []
        self._slots: list[Slot] = []
        self._rope_tables: list[RopeTable] = []
        self._layer_starts: list[int] = []

    def slot(self, name: str, width: int) -> Slot:
        """Return the slot of this name, made on first use; ops of later layers reuse it."""
        for slot in self._slots:
            if slot.name == name:
                return slot
        slot = Slot(len(self._slots), name, width)
        self._slots.append(slot)
        return slot

    def rope_table(self, table: RopeTable) -> int:
        """Return the index of `table`, added if new."""
        if table not in self._rope_tables:
            self._rope_tables.append(table)
        return self._rope_tables.index(table)

    def begin_layer(self) -> int:
        """Mark the start of the next layer and return its index."""
        self._layer_starts.append(len(self._ops))
        return len(self._layer_starts) - 1

    def embed(self, weight: str, out: Slot, *, scale: float = 1.0) -> Slot:
        """Record out = weight[token] * scale."""
        self._ops.append(Embed(weight, scale, out))
        return out

    def norm(self, x: Slot, weight: str, out: Slot) -> Slot:
        """Record out = rms_norm(x) * weight."""
        self._ops.append(RmsNorm(x, weight, self._epsilon, out))
        return out

    def norm_add(self, x: Slot, weight: str, residual: Slot) -> Slot:
        """Record residual += rms_norm(x) * weight."""
        self._ops.append(RmsNormAdd(x, weight, self._epsilon, residual))
        return residual

    def linear(self, x: Slot, parts: tuple[LinearPart, ...], out: Slot) -> Slot:
        """Record out = the parts' results side by side."""
        self._ops.append(Linear(x, parts, out))
        return out

    def linear_add(self, x: Slot, part: LinearPart, residual: Slot) -> Slot:
        """Record residual += part(x)."""
        self._ops.append(LinearAdd(x, part, residual))
        return residual

    def gated_linear(
        self, x: Slot, gate: LinearPart, up: LinearPart, activation: Activation, out: Slot
    ) -> Slot:
        """Record out = activation(gate(x)) * up(x)."""
        self._ops.append(GatedLinear(x, gate, up, activation, out))
        return out

    def rope_append(
        self, qkv: Slot, table: int, *, q_norm: str | None = None, k_norm: str | None = None
    ) -> Slot:
        """Record the rotation of q and k and the append of k and v for the current layer."""
        layer = len(self._layer_starts) - 1
        self._ops.append(
            RopeAppend(
                qkv,
                layer,
                self._num_heads,
                self._num_kv_heads,
                self._head_dim,
                table,
                q_norm,
                k_norm,
                self._epsilon,
            )
        )
        return qkv

    def attention(self, qkv: Slot, out: Slot, *, scale: float, window: int | None = None) -> Slot:
        """Record attention over the current layer's KV."""
        layer = len(self._layer_starts) - 1
        self._ops.append(
            Attention(
                qkv,
                layer,
                self._num_heads,
                self._num_kv_heads,
                self._head_dim,
                scale,
                window,
                out,
            )
        )
        return out

    def head(self, x: Slot, norm_weight: str, weight: str) -> None:
        """Record the final norm and the output matrix."""
        self._ops.append(Head(x, norm_weight, self._epsilon, weight))

    def finish(self) -> Program:
        """Return the recorded program."""
        return Program(
            ops=tuple(self._ops),
            slots=tuple(self._slots),
            rope_tables=tuple(self._rope_tables),
            layer_starts=tuple(self._layer_starts),
            vocab_size=self._vocab_size,
            num_layers=len(self._layer_starts),
            num_kv_heads=self._num_kv_heads,
            head_dim=self._head_dim,
        )
