"""What a benchmark times, checked once when it is made."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ellm.config.attention import EXACT, AttentionConfig
from ellm.config.bounds import MAX_TOKENS, check_integer, refuse
from ellm.config.engine import MAX_ROWS_PER_CHUNK

# A block: the KV store keeps the float form of int8 blocks for rows that go back no further.
RUN_AHEAD_TOKENS = 64
WARM_UP_STEPS = 2
MAX_DECODE_STEPS = 10_000
MAX_ROWS = 64  # a chain is shorter, and more rows are a chunk of a prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkPlan:
    """What to time; every field is checked on construction.

    Attributes:
        depths_tokens: Numbers of cached tokens to time at, ascending.
        decode_steps: Steps of one row at each depth, each a token of an answer.
        row_counts: Numbers of rows to time a step with, ascending.
        repetitions: Steps per number of rows.
        rows_per_chunk: Rows that the text is read in at most.
        attention: Which KV blocks the timed steps read; the text is read exactly.

    Raises:
        ConfigError: A value cannot work; the message names field, value and what is allowed.
    """

    depths_tokens: tuple[int, ...]
    decode_steps: int = 24
    row_counts: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    repetitions: int = 7
    rows_per_chunk: int = 512
    attention: AttentionConfig = EXACT

    def __post_init__(self) -> None:
        """Check every field."""
        _check_ascending("depths_tokens", self.depths_tokens, maximum=MAX_TOKENS)
        check_integer("decode_steps", self.decode_steps, minimum=1, maximum=MAX_DECODE_STEPS)
        check_integer("repetitions", self.repetitions, minimum=1, maximum=MAX_DECODE_STEPS)
        check_integer("rows_per_chunk", self.rows_per_chunk, minimum=1, maximum=MAX_ROWS_PER_CHUNK)
        most = min(MAX_ROWS, self.rows_per_chunk)
        _check_ascending("row_counts", self.row_counts, maximum=most)

    @property
    def context_tokens(self) -> int:
        """Tokens of KV cache that it takes."""
        return self.depths_tokens[-1] + room_tokens(self.decode_steps, self.row_counts)


def room_tokens(decode_steps: int, row_counts: Sequence[int]) -> int:
    """Return how many tokens beyond a depth its steps write at most."""
    return max(min(RUN_AHEAD_TOKENS, WARM_UP_STEPS + decode_steps), *row_counts)


def _check_ascending(field: str, found: tuple[int, ...], *, maximum: int) -> None:
    if not found:
        refuse(field, found, "at least one number")
    for item in found:
        check_integer(field, item, minimum=1, maximum=maximum)
    if any(a >= b for a, b in itertools.pairwise(found)):
        refuse(field, found, "numbers in ascending order, each once")
