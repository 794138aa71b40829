"""Which KV blocks answer rows attend to, checked once when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from ellm.config.bounds import MAX_TOKENS, check_integer, check_number, refuse

ATTENTION_MODES = ("exact", "bounded", "sparse", "auto")
BASELINE_MODES = ("block-mean",)  # for `ellm quality` alone: what choosing by block means would do

DEFAULT_MASS = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """How the rows of an answer attend; prompts are always read exactly.

    Attributes:
        mode: "exact" reads all keys and values; "bounded" all keys, and the values of blocks that
            hold `mass` of the exact attention; "sparse" the upper four bits of all keys, then the
            blocks that hold `mass` of the estimated attention; "auto" is "exact" up to a depth and
            "sparse" beyond it. What is not read enters through its mean.
        mass: Share of the attention that the blocks read must hold, above 0 to 1; None is what
            calibration found for "sparse" and "auto", else 0.95.
        tokens: Most tokens chosen besides the first 64, the last 512 and the open block; None is as
            many as `mass` takes.

    Raises:
        ConfigError: A value cannot work; the message names field, value and what is allowed.
    """

    mode: str = "exact"
    mass: float | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        if self.mode not in ATTENTION_MODES + BASELINE_MODES:
            refuse("attention", self.mode, " or ".join(map(repr, ATTENTION_MODES)))
        if self.mass is not None:
            check_number("sparse_mass", self.mass, minimum=0.0, maximum=1.0, above=True)
        if self.tokens is not None:
            check_integer("sparse_tokens", self.tokens, minimum=64, maximum=MAX_TOKENS)


EXACT = AttentionConfig()
