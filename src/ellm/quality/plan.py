"""What to measure, checked once when it is made."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from ellm.config.attention import EXACT, AttentionConfig
from ellm.config.bounds import MAX_TOKENS, check_integer, refuse

MAX_ANSWER_TOKENS = 60
MAX_SAMPLES = 10_000
MAX_TAIL_TOKENS = 4096
# Instructions and ten repeated words take several hundred tokens by themselves.
LEAST_LENGTH_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to answer.

    Attributes:
        name: What reports call it.
        attention: Which KV blocks its rows attend to.
    """

    name: str
    attention: AttentionConfig


REFERENCE = Arm("reference", EXACT)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPlan:
    """What to measure; every field is checked on construction.

    Attributes:
        lengths_tokens: Lengths of prompts, ascending.
        tasks: Names of the tasks; none leaves them out.
        samples: Items of each task at each length.
        seed: Same seed, same items.
        fidelity: Whether to compare predictions over tails.
        tail_tokens: Tokens that are fed one by one after a text.
        candidates: What is compared with the reference.

    Raises:
        ConfigError: A value cannot work; the message names field, value and what is allowed.
    """

    lengths_tokens: tuple[int, ...]
    tasks: tuple[str, ...]
    samples: int = 10
    seed: int = 0
    fidelity: bool = True
    tail_tokens: int = 192
    candidates: tuple[Arm, ...]

    def __post_init__(self) -> None:
        """Check every field."""
        if not self.lengths_tokens:
            refuse("lengths_tokens", self.lengths_tokens, "at least one number")
        for length in self.lengths_tokens:
            check_integer("lengths_tokens", length, minimum=LEAST_LENGTH_TOKENS, maximum=MAX_TOKENS)
        if any(a >= b for a, b in itertools.pairwise(self.lengths_tokens)):
            refuse("lengths_tokens", self.lengths_tokens, "numbers in ascending order, each once")
        check_integer("samples", self.samples, minimum=1, maximum=MAX_SAMPLES)
        check_integer("tail_tokens", self.tail_tokens, minimum=1, maximum=MAX_TAIL_TOKENS)
        names = [arm.name for arm in self.candidates]
        if not names or len(set(names)) < len(names):
            refuse("candidates", names, "at least one, each once")
        if not self.tasks and not self.fidelity:
            refuse("tasks", self.tasks, "at least one task where fidelity is left out")

    @property
    def room_tokens(self) -> int:
        """Tokens that a prompt of the greatest length must leave."""
        return room_tokens(self.tail_tokens, has_tasks=bool(self.tasks), has_fidelity=self.fidelity)

    @property
    def context_tokens(self) -> int:
        """Tokens of KV cache that it takes."""
        return self.lengths_tokens[-1] + self.room_tokens


def room_tokens(tail_tokens: int, *, has_tasks: bool, has_fidelity: bool) -> int:
    """Return how many tokens are written after a prompt at most."""
    return max(MAX_ANSWER_TOKENS if has_tasks else 0, tail_tokens if has_fidelity else 0)
