"""Keeps what the rows of an answer saw of the KV cache, block by block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ellm.program.executor import ChoiceRule, Estimate, Observation

# A row of an 8B model at 128K tokens takes 1 MB.
DEFAULT_MAX_ROWS = 256


class BlockTracer:
    """Collects the shares of blocks in the attention of answer rows, up to `max_rows` of them.

    Attributes:
        rows: Per row float16 (L, Hkv, B): largest share of a query head's attention that a block
            holds, negative where the block was not read. B grows along the answer.
        positions: Position of each row.
    """

    def __init__(
        self, *, num_layers: int, num_kv_heads: int, max_rows: int = DEFAULT_MAX_ROWS
    ) -> None:
        """Collect for a model of this shape."""
        self._shape = (num_layers, num_kv_heads)
        self._max_rows = max_rows
        self.rows: list[NDArray[np.float16]] = []
        self.positions: list[int] = []

    @property
    def wants_more(self) -> bool:
        """Whether there is room for more rows."""
        return len(self.rows) < self._max_rows

    def observation(self, count: int, blocks: int) -> Observation:
        """Return arrays for `count` rows that see at most `blocks` blocks."""
        return Observation(shares=np.zeros((count, *self._shape, blocks), dtype=np.float32))

    def keep(self, observation: Observation, start: int, rows: int) -> None:
        """Take the first `rows`, from position `start` on, as part of the answer."""
        if observation.shares is None:
            return
        for i, row in enumerate(observation.shares[:rows]):
            if self.wants_more:
                self.rows.append(row.astype(np.float16))
                self.positions.append(start + i)

    def shares(self, blocks: int) -> NDArray[np.float16]:
        """Return all rows as (R, L, Hkv, blocks), zero where a row had fewer blocks."""
        shares = np.zeros((len(self.rows), *self._shape, blocks), dtype=np.float16)
        for target, row in zip(shares, self.rows, strict=True):
            width = min(blocks, row.shape[-1])
            target[..., :width] = row[..., :width]
        return shares


def observing(rule: ChoiceRule | None) -> ChoiceRule:
    """Return a rule of the same result whose rows can be observed: exact rows read every block."""
    return ChoiceRule(Estimate.EXACT, mass=1.0) if rule is None else rule
