"""The fused operations a program is made of, as plain data.

Shapes: T rows of the step, E hidden size, Hq query heads, Hkv KV heads, D head_dim, F feed-forward
size, V vocabulary. A slot is a float32 matrix (T, width) that lives for one step. Weights are named
as in GGUF and have shape (rows, cols) = (outputs, inputs). Nothing here computes: executors do.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ellm.errors import NativeError


class Activation(Enum):
    """The non-linearity of a gated feed-forward layer."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


class RopeStyle(Enum):
    """Which two elements of a head turn together."""

    INTERLEAVED = "interleaved"  # (0,1), (2,3), ...: GGUF llama
    HALVES = "halves"  # (0, n/2), (1, n/2+1), ...: GGUF qwen2, gemma3 ("NEOX")


@dataclass(frozen=True, slots=True)
class Slot:
    """One float32 matrix (T, width) of the step."""

    index: int
    name: str
    width: int


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Rotation per position: angle(p, i) = p * inverse_frequencies[i], values times `magnitude`.

    Attributes:
        inverse_frequencies: n/2 floats for the n rotated elements of a head (n <= D); any scaling
            (linear, YaRN, llama3) is already applied.
        magnitude: Factor on cos and sin (YaRN's attention factor), else 1.0.
    """

    inverse_frequencies: tuple[float, ...]
    magnitude: float
    style: RopeStyle


@dataclass(frozen=True, slots=True)
class LinearPart:
    """One matrix of a linear op: y = weight @ x + bias."""

    weight: str
    bias: str | None = None


@dataclass(frozen=True, slots=True)
class Embed:
    """out = weight[token] * scale; weight (V, E)."""

    weight: str
    scale: float
    out: Slot


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """out = x / sqrt(mean(x^2) + epsilon) * weight, per row."""

    x: Slot
    weight: str
    epsilon: float
    out: Slot


@dataclass(frozen=True, slots=True)
class RmsNormAdd:
    """residual += rms_norm(x) * weight, per row (post-norms of gemma)."""

    x: Slot
    weight: str
    epsilon: float
    residual: Slot


@dataclass(frozen=True, slots=True)
class Linear:
    """out = the parts' results side by side, in order; out.width = sum of the parts' rows."""

    x: Slot
    parts: tuple[LinearPart, ...]
    out: Slot


@dataclass(frozen=True, slots=True)
class LinearAdd:
    """residual += weight @ x + bias."""

    x: Slot
    part: LinearPart
    residual: Slot


@dataclass(frozen=True, slots=True)
class GatedLinear:
    """out = activation(gate @ x) * (up @ x); gate and up (F, E)."""

    x: Slot
    gate: LinearPart
    up: LinearPart
    activation: Activation
    out: Slot


@dataclass(frozen=True, slots=True)
class RopeAppend:
    """Rotate q in place, rotate k, and append k and v of every row to the layer's KV.

    `qkv` holds per row: Hq*D of q, Hkv*D of k, Hkv*D of v. If given, `q_norm` and `k_norm` (D,)
    are RMS norms over each head, applied before the rotation.
    """

    qkv: Slot
    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_table: int  # index into Program.rope_tables
    q_norm: str | None
    k_norm: str | None
    epsilon: float


@dataclass(frozen=True, slots=True)
class Attention:
    """out (T, Hq*D) = softmax(scale * q k^T) v over the cached tokens of each row's own sequence.

    A row at position p sees positions 0..p, or with `window` w only those greater than p - w.
    Query head h reads KV head h // (Hq/Hkv).
    """

    qkv: Slot
    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    out: Slot


@dataclass(frozen=True, slots=True)
class Head:
    """logits = weight @ rms_norm(x), for the rows whose logits are wanted; weight (V, E)."""

    x: Slot
    norm_weight: str
    epsilon: float
    weight: str


Op = Embed | RmsNorm | RmsNormAdd | Linear | LinearAdd | GatedLinear | RopeAppend | Attention | Head


@dataclass(frozen=True, slots=True)
class Program:
    """A model recorded once: runs for any number of rows.

    Attributes:
        ops: All ops in order; the last is `Head`.
        slots: Every slot, `slots[i].index == i`.
        rope_tables: Tables that `RopeAppend.rope_table` indexes.
        layer_starts: Index in `ops` of the first op of each layer; ops before the first are the
            embedding, the op after the last layer is the head.
        vocab_size: V, the width of the logits.
    """

    ops: tuple[Op, ...]
    slots: tuple[Slot, ...]
    rope_tables: tuple[RopeTable, ...]
    layer_starts: tuple[int, ...]
    vocab_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def head(self) -> Head:
        """The last op."""
        head = self.ops[-1]
        if not isinstance(head, Head):
            raise NativeError(f"a program ends with {type(head).__name__}, expected Head")
        return head

    @property
    def hidden_size(self) -> int:
        """E, the width of the residual rows that the head reads."""
        return self.head.x.width

    def ops_before(self, layer: int) -> int:
        """Return how many ops run before layer `layer`, or before the head for L."""
        if layer == self.num_layers:
            return len(self.ops) - 1
        return self.layer_starts[layer]
