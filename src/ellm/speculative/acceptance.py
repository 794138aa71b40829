"""How often guesses are right, learnt while answering."""

from __future__ import annotations

# What is known beforehand counts like this many guesses, and guesses fade by this factor.
# Source: shared/research/proto_draft.md, section 6.
PRIOR_WEIGHT = 12.0
DECAY = 0.97


class Chance:
    """A running share of right guesses."""

    def __init__(self, prior: float) -> None:
        """Start from what is known of others."""
        self.mean = prior
        self._weight = PRIOR_WEIGHT

    def learn(self, *, right: bool) -> None:
        """Count a guess that was checked."""
        self._weight = self._weight * DECAY + 1
        self.mean += (right - self.mean) / self._weight
