"""Guesses of a model that says how sure it is: made one by one while it is, and learnt from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ellm.speculative.acceptance import Chance
from ellm.speculative.source import DraftContext

# Source of the figures: shared/research/proto_draft.md, sections 2 and 6.
LEAST_CONFIDENCE = 0.4
# How often a guess is right by its tenth of confidence.
_PRIORS = (0.12, 0.16, 0.20, 0.44, 0.53, 0.63, 0.70, 0.83, 0.90, 0.99)

Logits = NDArray[np.float32]


class ConfidenceChances:
    """How often guesses of one source are right; shared by all sequences.

    Attributes:
        overall: Chance of the next guess, before anything is known of it.
        least_confidence: Less sure guesses are not proposed.
    """

    def __init__(self, prior: float) -> None:
        """Start from what is known of others."""
        self.overall = Chance(prior)
        self.least_confidence = LEAST_CONFIDENCE
        self._by_tenth = [Chance(prior) for prior in _PRIORS]

    def of(self, tenth: int) -> Chance:
        """Return the chance of guesses in a tenth of confidence, 0 to 9."""
        return self._by_tenth[tenth]


@dataclass(slots=True)
class ConfidentGuesses:
    """The guesses between two commits.

    Attributes:
        chances: What they are learnt in.
        tokens: The guesses.
        claimed: Their chances.
        fed: Those of them that were run, too.
    """

    chances: ConfidenceChances
    tokens: list[int] = field(default_factory=list)
    claimed: list[float] = field(default_factory=list)
    fed: int = 0
    _tenths: list[int] = field(default_factory=list)
    _stopped: bool = False

    def make(
        self, logits: Logits, most: int, context: DraftContext, step: Callable[[int], Logits]
    ) -> None:
        """Guess up to `most` tokens while the model is confident and one more pays.

        Args:
            logits: Of the model, float32 (V,), after the last committed token.
            most: Most guesses, at least 1.
            context: How the answer samples, and whether to go on.
            step: Runs a guess and returns the logits after it.
        """
        while True:
            token = context.guesser(logits)
            tenth = _tenth(logits, token)
            if tenth < 10 * self.chances.least_confidence:
                self._stopped = True
                return
            self.tokens.append(token)
            self._tenths.append(tenth)
            self.claimed.append(self.chances.of(tenth).mean)
            if len(self.tokens) == most or not context.worth(self.claimed):
                return
            logits = step(token)
            self.fed += 1

    def learn(self, tokens: Sequence[int]) -> int:
        """Learn from what was committed; return how many of the guesses that were run are right."""
        right = 0
        for guess, tenth, token in zip(self.tokens, self._tenths, tokens, strict=False):
            self.chances.of(tenth).learn(right=guess == token)
            self.chances.overall.learn(right=guess == token)
            if guess != token:
                return min(right, self.fed)
            right += 1
        if self._stopped:
            self.chances.overall.learn(right=False)
        return min(right, self.fed)


def _tenth(logits: Logits, token: int) -> int:
    """Return the tenth, 0 to 9, that the probability of `token` under logits (V,) falls into."""
    with np.errstate(over="ignore"):  # an unlikely token that a bias made likely
        share = 1 / float(np.exp(logits - logits[token]).sum())
    return min(int(10 * share), 9)
