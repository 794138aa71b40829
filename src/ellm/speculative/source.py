"""What every source of guesses offers, so that the engine need not know which one it asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ellm.kv.block_pool import BlockIds

Guesser = Callable[[NDArray[np.float32]], int]
"""Returns the token that the answer's own sampler would take for logits (V,), and moves on."""

Worth = Callable[[Sequence[float]], bool]
"""Whether guessing once more pays after guesses with these chances."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Guesses at the tokens that follow.

    Attributes:
        source: Name of the source.
        tokens: The guesses, in order.
        claimed: How likely the source says each is to be right if those before it are.
        seconds: What the guesses took.
        trust: What the chances are worth.
    """

    source: str
    tokens: list[int]
    claimed: list[float]
    seconds: float = 0.0
    trust: float = 1.0

    @property
    def chances(self) -> list[float]:
        """How likely each guess is to be right if those before it are."""
        return [self.trust * chance for chance in self.claimed]

    def trusted(self, trust: float) -> Proposal:
        """Return the same guesses with this trust."""
        return replace(self, trust=trust)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a costly source is expected to do.

    Attributes:
        chance: How likely a guess is to be right, if those before it are.
        most: Most guesses that it makes at once.
        seconds_per_token: What a guess takes.
        first_seconds: What has to be done before the first one, such as reading what was committed
            since the last.
        setup_seconds: What has to be done once, before many guesses: reading the text.
    """

    chance: float
    most: int
    seconds_per_token: float
    first_seconds: float
    setup_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What a source may use while it guesses.

    Attributes:
        guesser: How the answer samples.
        blocks: KV blocks of the sequence, with room for the guesses.
        start: Position of its last committed token, which is in no KV block yet.
        worth: Whether another guess pays.
    """

    guesser: Guesser
    blocks: BlockIds
    start: int
    worth: Worth = lambda _chances: True


class Drafter(Protocol):
    """Guesses for one sequence. It learns of committed tokens only (law 4)."""

    @property
    def name(self) -> str:
        """Name of the source."""

    @property
    def outlook(self) -> Outlook | None:
        """What guessing is expected to bring and cost; None where it costs next to nothing."""

    def propose(self, most: int, context: DraftContext) -> Proposal | None:
        """Return up to `most` guesses, at least 1, or None.

        Raises:
            AbortedError: The engine was told to stop.
        """

    def commit(self, tokens: Sequence[int]) -> None:
        """Take note of tokens that are part of the sequence for good."""

    def close(self) -> None:
        """Give back what is held."""
