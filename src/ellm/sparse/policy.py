"""From an attention mode to the rule that a row at some position chooses its blocks by."""

from __future__ import annotations

from dataclasses import dataclass

from ellm.config.attention import DEFAULT_MASS, AttentionConfig
from ellm.program.executor import BLOCK_TOKENS, ChoiceRule, Estimate
from ellm.sparse.profile import SparseProfile

# Nearer, an exact row reads little beside the weights: nothing to gain.
# Source: shared/research/proto_sparse.md, "sparse from".
DEFAULT_SPARSE_FROM_TOKENS = 16384
# What the baseline `block-mean` takes unless told otherwise, as published selections do.
BASELINE_TOKENS = 2048
PROFILED_MODES = ("sparse", "auto")

_ESTIMATES = {
    "bounded": Estimate.EXACT,
    "sparse": Estimate.SCAN,
    "auto": Estimate.SCAN,
    "block-mean": Estimate.MEAN,
}


@dataclass(frozen=True, slots=True)
class AttentionPolicy:
    """The rule of every row of an answer: it depends on the row's position alone (law 1).

    Attributes:
        config: The mode that was asked for.
        profile: What calibration found about the model, if it was calibrated.
    """

    config: AttentionConfig
    profile: SparseProfile | None = None

    @property
    def mass(self) -> float:
        """Share of the attention that the blocks read must hold."""
        if self.config.mass is not None:
            return self.config.mass
        return DEFAULT_MASS if self._profile is None else self._profile.mass

    @property
    def sparse_from_tokens(self) -> int:
        """Position from which on "auto" is sparse."""
        found = self._profile
        return DEFAULT_SPARSE_FROM_TOKENS if found is None else found.sparse_from_tokens

    @property
    def _profile(self) -> SparseProfile | None:
        return self.profile if self.config.mode in PROFILED_MODES else None

    def rows_alike(self, position: int, count: int) -> int:
        """Return how many of `count` rows from `position` on have the rule of the first."""
        if self.config.mode != "auto" or position >= self.sparse_from_tokens:
            return count
        return min(count, self.sparse_from_tokens - position)

    def rule_at(self, position: int) -> ChoiceRule | None:
        """Return the rule of an answer's row at `position`, or None if it reads everything."""
        config = self.config
        if config.mode == "exact":
            return None
        if config.mode == "auto" and position < self.sparse_from_tokens:
            return None
        tokens = config.tokens
        if tokens is None and config.mode == "block-mean":
            tokens = BASELINE_TOKENS
        return ChoiceRule(
            estimate=_ESTIMATES[config.mode],
            mass=self.mass,
            max_blocks=None if tokens is None else tokens // BLOCK_TOKENS,
            heads=None if self._profile is None else self._profile.heads,
        )
