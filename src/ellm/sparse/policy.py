"""From an attention mode to the rule that a row at some position chooses its blocks by."""

from __future__ import annotations

from dataclasses import dataclass

from ellm.config.attention import AttentionConfig
from ellm.program.executor import BLOCK_TOKENS, ChoiceRule, Estimate

# Nearer, an exact row reads little beside the weights: nothing to gain.
# Source: shared/research/proto_sparse.md, "sparse from".
DEFAULT_SPARSE_FROM_TOKENS = 16384
# What the baseline `block-mean` takes unless told otherwise, as published selections do.
BASELINE_TOKENS = 2048

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
        sparse_from_tokens: Position from which on "auto" is sparse.
    """

    config: AttentionConfig
    sparse_from_tokens: int = DEFAULT_SPARSE_FROM_TOKENS

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
            mass=config.mass,
            max_blocks=None if tokens is None else tokens // BLOCK_TOKENS,
        )
