"""Guesses copied from the prompt and the answer so far: what followed the longest match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ellm.speculative.acceptance import Chance
from ellm.speculative.source import DraftContext, Outlook, Proposal

# A match by its length: how often the first guess is right, and each one after it.
# Source: shared/research/proto_draft.md, section 1, over seven kinds of answers.
_PRIORS = {
    1: (0.25, 0.6),
    2: (0.46, 0.75),
    3: (0.61, 0.8),
    4: (0.78, 0.8),
    6: (0.82, 0.8),
    9: (0.77, 0.85),
    16: (0.95, 0.97),
}
_LENGTHS = tuple(_PRIORS)
# A copy that met a token the text never had goes on behind it. Where the text had that token, what
# followed it there is the better guess, on all kinds of answers of benchmarks/chains.py.
_RESUMED = 0
_RESUMED_PRIOR = (0.35, 0.6)


class Index(Protocol):
    """`native.SuffixIndex`: the longest suffix of a text that it had before."""

    def extend(self, tokens: NDArray[np.int32]) -> None:
        """Append tokens (n,)."""

    def match(self) -> tuple[int, int]:
        """Return the length of that suffix and the position behind its latest other place."""


class SuffixChances:
    """How often copies were right, by the length of the match; shared by all sequences."""

    def __init__(self) -> None:
        """Start from what is known of others."""
        priors = {**_PRIORS, _RESUMED: _RESUMED_PRIOR}
        self._chances = {
            key: (Chance(first), Chance(later)) for key, (first, later) in priors.items()
        }

    def of(self, key: int, position: int) -> Chance:
        """Return the chance of the guess at `position`; the first is the one at risk."""
        return self._chances[key][min(position, 1)]


@dataclass(frozen=True, slots=True)
class _Copy:
    key: int  # of its chances
    source: int  # position in the text of the first guess
    tokens: list[int]


class SuffixDrafter:
    """Copies for one sequence. Being next to free, every copy is checked, also one not proposed."""

    name = "suffix"

    def __init__(self, index: Index, chances: SuffixChances) -> None:
        """Start with an empty text."""
        self._index = index
        self._chances = chances
        self._text: list[int] = []
        self._copy: _Copy | None = None
        self._resume_at: int | None = None

    @property
    def outlook(self) -> Outlook | None:
        """None: copying costs nothing."""
        return None

    def propose(self, most: int, context: DraftContext) -> Proposal | None:
        """Return the tokens that followed the longest match."""
        del context
        length, source = self._index.match()
        if length:
            key = max(step for step in _LENGTHS if step <= length)
        elif self._resume_at is not None:
            key, source = _RESUMED, self._resume_at
        else:
            self._copy = None
            return None
        # One more than is proposed: what comes after the last guess is compared, too.
        tokens = self._text[source : source + most + 1]
        while len(tokens) <= most:  # the match runs into the end of the text: it repeats
            tokens.append(tokens[source - len(self._text) + len(tokens)])
        self._copy = _Copy(key, source, tokens)
        chances = [self._chances.of(key, position).mean for position in range(most)]
        return Proposal(self.name, tokens[:most], chances)

    def commit(self, tokens: Sequence[int]) -> None:
        """Learn from the last copy, and append to the text."""
        self._learn(tokens)
        self._text += tokens
        self._index.extend(np.array(tokens, dtype=np.int32))

    def close(self) -> None:
        """Hold nothing."""

    def _learn(self, tokens: Sequence[int]) -> None:
        copy, self._copy, self._resume_at = self._copy, None, None
        if copy is None:
            return
        for position, (guess, token) in enumerate(zip(copy.tokens, tokens, strict=False)):
            self._chances.of(copy.key, position).learn(right=guess == token)
            if guess != token:
                self._resume_at = copy.source + position + 1
                return
        self._resume_at = copy.source + len(tokens)
