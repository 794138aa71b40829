"""What a probe measured of exits from shallow layers, and whether drafts from them pay."""

from __future__ import annotations

from dataclasses import dataclass

MAX_CHAIN = 4
"""Draft tokens of the longest chain that is looked at."""
LEAST_GAIN = 1.05
"""Speed over plain decoding from which on drafts are worth it."""
_HALVINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthFigures:
    """What was measured of the exit at one layer.

    Attributes:
        layer: Layers that run before it.
        agreed: Positions at which its likeliest token was the model's own.
        positions: Positions that were looked at.
        exit_seconds: Median time of a step of one row that leaves there.
    """

    layer: int
    agreed: int
    positions: int
    exit_seconds: float

    @property
    def acceptance(self) -> float:
        """Share of the positions that agreed."""
        return self.agreed / self.positions


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitFigures:
    """What was measured of a model's exits, all in one run.

    Attributes:
        num_layers: L.
        learnt_tokens: Tokens that the maps were fitted on.
        depth_tokens: Context at which steps were timed.
        step_seconds: Median times of whole steps of 1 to 5 rows.
        depths: The exits, from the shallowest on; at least one.
    """

    num_layers: int
    learnt_tokens: int
    depth_tokens: int
    step_seconds: tuple[float, ...]
    depths: tuple[DepthFigures, ...]

    @property
    def best(self) -> DepthFigures:
        """The exit that gains most."""
        return max(self.depths, key=lambda depth: self.gain(depth, self.best_chain(depth)))

    @property
    def pays(self) -> bool:
        """Whether drafts from the best exit make answers 5 % faster."""
        return self.gain(self.best, self.best_chain(self.best)) >= LEAST_GAIN

    def cost_ratio(self, depth: DepthFigures) -> float:
        """Return the time of a step that leaves at an exit over that of a whole step."""
        return depth.exit_seconds / self.step_seconds[0]

    def gain(self, depth: DepthFigures, chain: int) -> float:
        """Return the expected speed of chains of 1 to 4 drafts over plain decoding."""
        return self._gain_at(depth.acceptance, depth, chain)

    def best_chain(self, depth: DepthFigures) -> int:
        """Return how many drafts gain most."""
        return max(range(1, MAX_CHAIN + 1), key=lambda chain: self.gain(depth, chain))

    def needed_acceptance(self, depth: DepthFigures) -> float | None:
        """Return the least acceptance with which an exit would pay, or None if none would do."""

        def best_gain(acceptance: float) -> float:
            chains = range(1, MAX_CHAIN + 1)
            return max(self._gain_at(acceptance, depth, chain) for chain in chains)

        low, high = 0.0, 1.0
        if best_gain(high) < LEAST_GAIN:
            return None
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if best_gain(middle) >= LEAST_GAIN else (middle, high)
        return high

    def verdict(self) -> str:
        """Return in words whether the best exit pays, and why or why not."""
        best = self.best
        found = (
            f"at layer {best.layer} of {self.num_layers} the exit agrees in "
            f"{best.acceptance:.0%} of tokens and costs {self.cost_ratio(best):.2f} of a step"
        )
        if self.pays:
            chain = self.best_chain(best)
            drafts = "1 draft" if chain == 1 else f"{chain} drafts"
            gain = self.gain(best, chain)
            return f"pays: {found}; chains of {drafts} make answers {gain:.2f} times as fast"
        needed = self.needed_acceptance(best)
        if needed is None:
            return f"does not pay: {found}; it would not pay if it agreed in all of them"
        return f"does not pay: {found}; it would have to agree in more than {needed:.0%}"

    def _gain_at(self, acceptance: float, depth: DepthFigures, chain: int) -> float:
        """Return expected tokens per round over its time in whole steps of one row.

        Source: Leviathan et al., arXiv 2211.17192, section 3.3, with a verifying step of chain + 1
        rows that takes what it was measured to take.
        """
        tokens = sum(acceptance**accepted for accepted in range(chain + 1))
        verifying = self.step_seconds[chain] / self.step_seconds[0]
        return tokens / (chain * self.cost_ratio(depth) + verifying)
