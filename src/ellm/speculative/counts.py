"""What guessing did over an answer."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """Guesses of one source in one answer.

    Attributes:
        proposed_tokens: Guesses that were checked.
        accepted_tokens: Those that were right, and so were all before them.
        accepted_by_position: Of chains that had a guess at that place, how many were right there.
        proposed_by_position: How many chains had a guess at that place.
    """

    proposed_tokens: int
    accepted_tokens: int
    accepted_by_position: tuple[int, ...]
    proposed_by_position: tuple[int, ...]

    @property
    def acceptance_rate(self) -> float:
        """Share of guesses that were right; 0 without guesses."""
        return self.accepted_tokens / self.proposed_tokens if self.proposed_tokens else 0.0


@dataclass(slots=True, eq=False)
class ChainLog:
    """Adds up the chains of one answer.

    Attributes:
        steps: Steps after the prompt.
        tokens: Tokens that they brought.
        guessing_seconds: What guesses took.
        saved_seconds: What chains saved against one step per token, by the predicted time of one.
    """

    steps: int = 0
    tokens: int = 0
    guessing_seconds: float = 0.0
    saved_seconds: float = 0.0
    _lengths: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, source: str, proposed: int, accepted: int) -> None:
        """Count a chain of `proposed` guesses, the first `accepted` of which were right."""
        self._lengths.setdefault(source, []).append((proposed, accepted))

    def by_source(self) -> dict[str, SourceCounts]:
        """Return the counts of every source that guessed."""
        return {name: _counts(lengths) for name, lengths in self._lengths.items()}


def _counts(lengths: list[tuple[int, int]]) -> SourceCounts:
    longest = range(1, max(proposed for proposed, _ in lengths) + 1)
    return SourceCounts(
        proposed_tokens=sum(proposed for proposed, _ in lengths),
        accepted_tokens=sum(accepted for _, accepted in lengths),
        accepted_by_position=tuple(sum(a >= place for _, a in lengths) for place in longest),
        proposed_by_position=tuple(sum(p >= place for p, _ in lengths) for place in longest),
    )
