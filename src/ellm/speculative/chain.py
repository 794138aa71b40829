"""The sources of one sequence, and which of them guesses next."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ellm.errors import AbortedError, EllmError
from ellm.speculative.acceptance import Trust
from ellm.speculative.counts import ChainLog
from ellm.speculative.policy import (
    LEAST_GAIN,
    Seconds,
    best_rate,
    costly_rate,
    pays_back,
    pays_to_go_on,
)
from ellm.speculative.source import DraftContext, Drafter, Proposal

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NextStep:
    """The step that guesses would be checked in.

    Attributes:
        seconds: Its time by rows.
        sequences: How many share it; each has one row without guesses.
    """

    seconds: Seconds
    sequences: int


@dataclass(slots=True, eq=False)
class SequenceChains:
    """What guesses for one sequence.

    Attributes:
        drafters: Its sources, cheapest first.
        most: Most guesses per step.
        log: What they did.
        proposal: What the running step checks.
        told_tokens: Tokens that the sources know.
    """

    drafters: list[Drafter]
    most: int
    log: ChainLog = field(default_factory=ChainLog)
    proposal: Proposal | None = None
    told_tokens: int = 0
    _trust: dict[str, Trust] = field(default_factory=lambda: defaultdict(Trust))

    def propose(
        self, most: int, step: NextStep, *, tokens_left: int, context: DraftContext
    ) -> Proposal | None:
        """Return the guesses that are expected to bring the most tokens per second.

        If none pay, those that cost nothing: how many are checked, if any, is decided later.

        Args:
            most: Most guesses, at least 1.
            step: What checking them costs.
            tokens_left: Tokens that the answer may still have.
            context: Where the guesses would go.

        Raises:
            AbortedError: The engine was told to stop.
        """
        best: Proposal | None = None
        free: Proposal | None = None
        rate = LEAST_GAIN * step.sequences / step.seconds(step.sequences)
        for drafter in list(self.drafters):
            outlook = drafter.outlook
            if outlook is not None:
                expected = costly_rate(outlook, step.seconds, rows=step.sequences, most=most)
                if not pays_back(outlook, rate=rate, expected=expected, tokens=tokens_left):
                    continue
            found = self._ask(drafter, most, step, context)
            if found is None:
                continue
            if outlook is None:
                free = free or found
            self.log.guessing_seconds += found.seconds
            self.log.saved_seconds -= found.seconds
            found_rate = best_rate(found.chances, step.seconds, rows=step.sequences)
            if found_rate > rate:
                best, rate = found, found_rate
        return best or free

    def checked(self, guesses: int, right: int) -> None:
        """Learn that of the first `guesses` proposed tokens the first `right` were right."""
        if self.proposal is not None and guesses:
            self._trust[self.proposal.source].learn(self.proposal.claimed[:guesses], right)
            self.log.add(self.proposal.source, guesses, right)

    def commit(self, tokens: Sequence[int]) -> None:
        """Tell every source of tokens that are part of the sequence for good."""
        self.told_tokens += len(tokens)
        for trust in self._trust.values():
            trust.fade(len(tokens))
        for drafter in self.drafters:
            drafter.commit(tokens)

    def close(self) -> None:
        """Give back what the sources hold."""
        for drafter in self.drafters:
            drafter.close()
        self.drafters = []

    def _ask(
        self, drafter: Drafter, most: int, step: NextStep, context: DraftContext
    ) -> Proposal | None:
        outlook = drafter.outlook

        def worth(chances: Sequence[float]) -> bool:
            return outlook is None or pays_to_go_on(chances, outlook, step.seconds, step.sequences)

        try:
            found = drafter.propose(most, replace(context, worth=worth))
        except AbortedError:
            raise
        except EllmError as error:
            _LOGGER.warning("%s guesses no more for this answer: %s", drafter.name, error)
            drafter.close()
            self.drafters.remove(drafter)
            return None
        return None if found is None else found.trusted(self._trust[drafter.name].factor)
