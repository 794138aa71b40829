"""From what was seen over texts to what a profile says of the heads, and to the mass it reads.

A head has one of three allowances: 0 (reads everything), 1 (skips what `mass` allows) or infinity
(reads the first block and the window alone). Shares in between, larger for heads whose skips moved
predictions least, were rejected: they overfit. On held-out near-duplicate prose they gave a mean KL
of 0.0069 against 0.0058 with one share for all, at as many blocks read.

Scales correct what the scan of four bits finds. They are within a few percent on average (mean of
the logarithm 0.003, single heads from -0.3 to 0.4) and hardly change the KL; with them the share
that an answer says it skipped is the one it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ellm.calibration.observing import HeadObservations
from ellm.calibration.plan import MASSES, MAX_P99_KL
from ellm.program.executor import ChoiceRule, Estimate, Floats, HeadFactors
from ellm.sparse.profile import HeldOutFigures

# A head whose attention beyond the window was less in every row reads the window alone.
STREAMING_SHARE = 0.005
# Scanning costs 0.3 of reading: a head that reads more than the rest is cheaper without.
DENSE_READ_SHARE = 0.7
MAX_SCALE = 4.0

Figures = Sequence[HeldOutFigures]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextFindings:
    """What one text taught.

    Attributes:
        text: Its name.
        observations: What heads saw.
        by_mass: How far predictions were by each of `MASSES`, all heads alike.
    """

    text: str
    observations: HeadObservations
    by_mass: tuple[HeldOutFigures, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learnt:
    """What all texts taught of the heads.

    Attributes:
        scales: float32 (L, Hq), factors on the masses that the scan finds.
        streaming: bool (L, Hkv), heads that need the window alone.
        read: float64 (L, Hkv, M), share of the blocks to choose from that each of `MASSES` reads.
    """

    scales: Floats
    streaming: NDArray[np.bool_]
    read: NDArray[np.float64]

    @classmethod
    def from_texts(cls, findings: Sequence[TextFindings]) -> Self:
        """Return what texts taught."""
        seen = [found.observations for found in findings]
        logarithms = np.mean([np.log(each.scales) for each in seen], axis=0)
        scales = np.clip(np.exp(logarithms), 1 / MAX_SCALE, MAX_SCALE).astype(np.float32)
        beyond = np.max([each.beyond_window for each in seen], axis=0)
        read = np.mean([each.read for each in seen], axis=0)
        return cls(scales=scales, streaming=beyond < STREAMING_SHARE, read=read)

    def heads(self, index: int) -> HeadFactors:
        """Return how heads differ where rows read the mass of this index in `MASSES`."""
        allowances = np.ones(self.streaming.shape, dtype=np.float32)
        allowances[self.read[..., index] >= DENSE_READ_SHARE] = 0.0
        allowances[self.streaming] = np.inf
        return HeadFactors(allowances, self.scales)

    def rule(self, index: int) -> ChoiceRule:
        """Return the rule of rows that read the mass of this index in `MASSES`."""
        return ChoiceRule(Estimate.SCAN, MASSES[index], heads=self.heads(index))


def meets(found: HeldOutFigures, max_kl: float) -> bool:
    """Return whether predictions are near enough."""
    return found.mean_kl <= max_kl and found.p99_kl <= MAX_P99_KL


def choose_mass(texts: Sequence[Figures], max_kl: float) -> tuple[int, bool]:
    """Return the place of the smallest mass that is near enough on every text, and True.

    Where none is, it is the last, and False.

    Args:
        texts: For each text its figures by mass, the masses ascending and the same for all.
        max_kl: Mean KL to stay under.
    """
    by_mass = list(zip(*texts, strict=True))
    for index, figures in enumerate(by_mass):
        if all(meets(found, max_kl) for found in figures):
            return index, True
    return len(by_mass) - 1, False


def learnt_mass(findings: Sequence[TextFindings], max_kl: float) -> tuple[int, bool]:
    """Return the place in `MASSES` that `choose_mass` finds, and whether it is near enough."""
    return choose_mass([found.by_mass for found in findings], max_kl)
