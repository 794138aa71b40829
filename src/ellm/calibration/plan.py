"""What a calibration runs, checked once when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from ellm.config.bounds import check_integer, check_number, refuse

# As `ellm.program.executor` has it, which the command line must not pay for at its start.
BLOCK_TOKENS = 64
LEAST_LENGTH_TOKENS = 1024
MAX_LENGTH_TOKENS = 131_072
LEAST_TAIL_TOKENS = 8
MAX_TAIL_TOKENS = 512
DEFAULT_LENGTH_TOKENS = 8192
DEFAULT_TAIL_TOKENS = 64
DEFAULT_MAX_KL = 0.002
MOST_MAX_KL = 10.0
# Held beside the mean, which single lost tokens hardly move.
MAX_P99_KL = 0.3
# Of the probe of exits: tokens that are read at once, from nothing before them, and its context.
PIECE_TOKENS = 512
PROBE_CONTEXT_TOKENS = 1600
# Shares of the attention that are tried, ascending.
MASSES = (0.80, 0.85, 0.90, 0.93, 0.95, 0.97, 0.98, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationPlan:
    """How a model is calibrated; every field is checked on construction.

    Attributes:
        length_tokens: Depth that texts are read to, in whole blocks.
        tail_tokens: Tokens after it over which predictions are compared.
        max_kl: Mean KL(exact || sparse) in nats to stay under on every text.

    Raises:
        ConfigError: A value cannot work; the message names field, value and what is allowed.
    """

    length_tokens: int = DEFAULT_LENGTH_TOKENS
    tail_tokens: int = DEFAULT_TAIL_TOKENS
    max_kl: float = DEFAULT_MAX_KL

    def __post_init__(self) -> None:
        """Check every field."""
        check_integer(
            "length_tokens",
            self.length_tokens,
            minimum=LEAST_LENGTH_TOKENS,
            maximum=MAX_LENGTH_TOKENS,
        )
        if self.length_tokens % BLOCK_TOKENS:
            refuse("length_tokens", self.length_tokens, f"a multiple of {BLOCK_TOKENS}")
        check_integer(
            "tail_tokens", self.tail_tokens, minimum=LEAST_TAIL_TOKENS, maximum=MAX_TAIL_TOKENS
        )
        check_number("max_kl", self.max_kl, minimum=0.0, maximum=MOST_MAX_KL, above=True)

    @property
    def context_tokens(self) -> int:
        """Tokens of KV cache that it takes."""
        return self.length_tokens + self.tail_tokens
