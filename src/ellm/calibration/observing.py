"""What the heads of a model see at the end of a text, exactly and as the scan estimates it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ellm.calibration.plan import MASSES
from ellm.calibration.shape import Shape
from ellm.engine.replay import Replay
from ellm.program.executor import BLOCK_TOKENS, ChoiceRule, Estimate, Floats, Observation
from ellm.program.numpy_choice import SINK_BLOCKS, WINDOW_BLOCKS, chosen_blocks

# Rows of the tail whose masses are looked at: every so many, the others are alike.
ROW_STRIDE = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadObservations:
    """What was seen over the rows of one text.

    Heads of layers with a sliding window have 1, 0 and 1, which calls for nothing.

    Attributes:
        scales: float64 (L, Hq), mass of the blocks to choose from over what the scan finds,
            geometric mean over rows.
        read: float64 (L, Hkv, M), share of the blocks to choose from that each of `MASSES` reads,
            mean over rows.
        beyond_window: float64 (L, Hkv), largest share of a query head's attention in the blocks to
            choose from, in any row.
    """

    scales: NDArray[np.float64]
    read: NDArray[np.float64]
    beyond_window: NDArray[np.float64]


def observe_tail(
    replay: Replay,
    tail: Sequence[int],
    position: int,
    shape: Shape,
    on_token: Callable[[], None],
) -> tuple[list[Floats], HeadObservations]:
    """Feed a tail exactly; return the logits (V,) after each token, and what heads saw.

    Args:
        replay: Has read the text before `position`.
        tail: Tokens to feed.
        position: Of the first of them.
        shape: Of the model.
        on_token: Called after each.
    """
    logits: list[Floats] = []
    seen = _Seen(shape)
    exact = ChoiceRule(Estimate.EXACT, mass=1.0)
    for index, token in enumerate(tail):
        blocks = (position + index) // BLOCK_TOKENS + 1
        observed = _arrays(shape, blocks) if index % ROW_STRIDE == 0 else None
        found, _ = replay.run(token, position + index, exact, observed)
        logits.append(found)
        if observed is not None and observed.exact is not None and observed.scan is not None:
            seen.add(observed.exact[0], observed.scan[0])
        on_token()
    return logits, seen.observations()


def _arrays(shape: Shape, blocks: int) -> Observation:
    by_head = (1, shape.num_layers, shape.num_heads, blocks)
    return Observation(
        exact=np.zeros(by_head, dtype=np.float32), scan=np.zeros(by_head, dtype=np.float32)
    )


class _Seen:
    """Adds up rows."""

    def __init__(self, shape: Shape) -> None:
        heads, kv_heads = shape.num_heads, shape.num_kv_heads
        self._shape = shape
        self._rows = 0
        self._ratios = np.zeros((shape.num_layers, heads))
        self._read = np.zeros((shape.num_layers, kv_heads, len(MASSES)))
        self._beyond = np.zeros((shape.num_layers, kv_heads))

    def add(self, exact: Floats, scan: Floats) -> None:
        """Add a row's logarithms of masses (L, Hq, B), its own block last."""
        stored = exact.shape[-1] - 1
        some = slice(SINK_BLOCKS, max(SINK_BLOCKS, stored - WINDOW_BLOCKS))
        self._rows += 1
        for layer in np.flatnonzero(self._shape.choosing):
            if some.start == some.stop:
                self._read[layer] += 1
                continue
            row = exact[layer]
            self._ratios[layer] += _log_sum(row[:, some]) - _log_sum(scan[layer][:, some])
            shares = np.exp(row - _log_sum(row)[:, None])[:, :stored].astype(np.float32)
            self._add_shares(int(layer), shares, some)

    def _add_shares(self, layer: int, shares: Floats, some: slice) -> None:
        """Add the shares (Hq, B) of the stored blocks in a layer's attention."""
        for kv_head, group in enumerate(np.split(shares, self._shape.num_kv_heads)):
            beyond = group[:, some].sum(axis=1).max()
            self._beyond[layer, kv_head] = max(self._beyond[layer, kv_head], beyond)
            for i, mass in enumerate(MASSES):
                chosen = chosen_blocks(ChoiceRule(Estimate.SCAN, mass=mass), group)
                self._read[layer, kv_head, i] += chosen[some].mean()

    def observations(self) -> HeadObservations:
        """Return what the rows come to."""
        choosing = np.array(self._shape.choosing)[:, None]
        return HeadObservations(
            scales=np.exp(self._ratios / self._rows),
            read=self._read / self._rows,
            beyond_window=np.where(choosing, self._beyond, 1.0),
        )


def _log_sum(masses: Floats) -> NDArray[np.float64]:
    """Return the logarithm of the sum over the last axis of exp(masses)."""
    wide = masses.astype(np.float64)
    largest = wide.max(axis=-1, keepdims=True)
    total: NDArray[np.float64] = np.log(np.exp(wide - largest).sum(axis=-1)) + largest[..., 0]
    return total
