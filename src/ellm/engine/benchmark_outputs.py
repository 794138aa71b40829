"""What a benchmark returns: the figures of each depth, and how far it is."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ellm.engine.outputs import PromptProgress
from ellm.sparse.counts import ChoiceTotals


@dataclass(frozen=True, slots=True)
class Timings:
    """How long repetitions of one step took.

    Attributes:
        seconds: One duration each, in the order they ran.
    """

    seconds: tuple[float, ...]

    @property
    def median_seconds(self) -> float:
        """The middle one, which a step that the system held up hardly moves."""
        return statistics.median(self.seconds)

    @property
    def range_seconds(self) -> tuple[float, float]:
        """The shortest and the longest."""
        return min(self.seconds), max(self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthResult:
    """What was measured at one depth.

    Attributes:
        depth_tokens: Cached tokens.
        prefill_seconds: Time of all chunks from the empty cache to here.
        decode: One-row steps, the choice of the likeliest token included.
        steps: By number of rows: steps whose every row asks for its logits, as a chain does.
        bytes_per_token: Bytes that decoding one token here reads, 0 where nobody counts them.
        peak_rss_bytes: Most memory this process held so far.
        choices: What the decode steps read of the KV blocks, if they chose.
    """

    depth_tokens: int
    prefill_seconds: float
    decode: Timings
    steps: Mapping[int, Timings]
    bytes_per_token: int
    peak_rss_bytes: int
    choices: ChoiceTotals

    @property
    def prefill_tokens_per_second(self) -> float:
        """Mean rate from the empty cache to here."""
        return self.depth_tokens / self.prefill_seconds

    @property
    def decode_tokens_per_second(self) -> float:
        """Rate of the median step."""
        return 1 / self.decode.median_seconds

    @property
    def read_share(self) -> float:
        """Share of the KV blocks that a decoded token read in full."""
        choices = self.choices
        return choices.blocks_read / choices.blocks_total if choices.blocks_total else 1.0

    @property
    def gb_per_s(self) -> float:
        """Bytes that the median decode step read per second, in 1e9 bytes."""
        return self.bytes_per_token / self.decode.median_seconds / 1e9


@dataclass(frozen=True, slots=True)
class StepProgress:
    """How many of the steps at one depth were run.

    Attributes:
        depth_tokens: The depth.
        done_steps: Steps run.
        total_steps: Steps to run there, those to warm up included.
    """

    depth_tokens: int
    done_steps: int
    total_steps: int


BenchmarkProgress = Callable[[PromptProgress | StepProgress], None]
