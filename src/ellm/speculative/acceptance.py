"""How often guesses are right, learnt while answering."""

from __future__ import annotations

from collections.abc import Sequence

# What is known beforehand counts like this many guesses, and guesses fade by this factor.
# Source: shared/research/proto_draft.md, section 6.
PRIOR_WEIGHT = 12.0
DECAY = 0.97
# A source is believed like one that was right about so many guesses, and what it did fades by this
# factor with every token.
TRUST_WEIGHT = 4.0
TRUST_DECAY = 0.995


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


class Trust:
    """How far the chances that a source claims are to be believed.

    Sources learn their chances themselves. One that claims too much is found out here, and asked
    again after some hundred tokens: the text may have changed.
    """

    def __init__(self) -> None:
        """Believe everything."""
        self._claimed = 0.0
        self._right = 0.0

    @property
    def factor(self) -> float:
        """What claimed chances are worth, at most all."""
        return min(1.0, (self._right + TRUST_WEIGHT) / (self._claimed + TRUST_WEIGHT))

    def learn(self, claimed: Sequence[float], right: int) -> None:
        """Count a chain with these chances whose first `right` guesses were right."""
        self._claimed += sum(claimed[: right + 1])
        self._right += right

    def fade(self, tokens: int) -> None:
        """Forget some, as `tokens` more were committed."""
        self._claimed *= TRUST_DECAY**tokens
        self._right *= TRUST_DECAY**tokens
