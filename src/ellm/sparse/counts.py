"""What choosing blocks did over an answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ellm.program.executor import NUM_COUNTS, Estimate


@dataclass(frozen=True, slots=True)
class ChoiceTotals:
    """Sums over the rows that chose, their layers and KV heads.

    Attributes:
        rows: Rows.
        blocks_total: Stored blocks before their own.
        blocks_read: Those that were read in full.
        widened: Times more than 4,096 chosen tokens were needed for the mass.
        skipped_mass: Mean share of the attention in blocks that were not read, as estimated.
        estimate: What it was estimated from; None without rows.
    """

    rows: int = 0
    blocks_total: int = 0
    blocks_read: int = 0
    widened: int = 0
    skipped_mass: float = 0.0
    estimate: Estimate | None = None


class ChoiceLog:
    """Adds up the counts of committed rows."""

    def __init__(self) -> None:
        """Start with none."""
        self._rows = 0
        self._sums = np.zeros(NUM_COUNTS)
        self._estimate: Estimate | None = None

    def add(self, counts: NDArray[np.float64], estimate: Estimate) -> None:
        """Add rows (T, 5) of `RowChoices.counts`."""
        self._rows += len(counts)
        self._sums += counts.sum(axis=0)
        self._estimate = estimate

    @property
    def totals(self) -> ChoiceTotals:
        """The sums so far."""
        total, read, widened, skipped, heads = self._sums
        return ChoiceTotals(
            rows=self._rows,
            blocks_total=int(total),
            blocks_read=int(read),
            widened=int(widened),
            skipped_mass=float(skipped / heads) if heads else 0.0,
            estimate=self._estimate,
        )
