"""From which depth on sparse steps are faster than exact ones on this machine."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from ellm.engine.replay import Replay
from ellm.program.executor import ChoiceRule
from ellm.quality.fidelity import Passage

# There a row reads all blocks in either mode: sink and window hold them.
SHALLOW_TOKENS = 512
TIMED_STEPS = 21
# Less is not worth another result than the exact one, and is hard to measure.
LEAST_GAIN = 0.05
ROUNDING_TOKENS = 1024

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Median times of steps of one row.

    Attributes:
        depth_tokens: Where exact and sparse steps were timed.
        shallow_seconds: An exact step at 512 tokens.
        exact_seconds: An exact step at the depth.
        sparse_seconds: A sparse step at the depth.
    """

    depth_tokens: int
    shallow_seconds: float
    exact_seconds: float
    sparse_seconds: float


def time_steps(
    replay: Replay,
    passage: Passage,
    rule: ChoiceRule,
    clock: Clock,
    on_step: Callable[[], None],
) -> StepTimes:
    """Time steps at the end of a passage that was read, and at 512 tokens of it.

    The passage is no longer read afterwards.
    """
    depth, token = len(passage.prompt), passage.tail[0]

    def timed(position: int, rule: ChoiceRule | None) -> float:
        started = clock()
        replay.run(token, position, rule)
        seconds = clock() - started
        on_step()
        return seconds

    # In turn, so that whatever else the machine does slows both. The first of each warms up.
    pairs = [(timed(depth, None), timed(depth, rule)) for _ in range(TIMED_STEPS + 1)][1:]
    replay.read(passage.prompt[:SHALLOW_TOKENS])
    shallow = [timed(SHALLOW_TOKENS, None) for _ in range(TIMED_STEPS + 1)][1:]
    return StepTimes(
        depth_tokens=depth,
        shallow_seconds=statistics.median(shallow),
        exact_seconds=statistics.median(exact for exact, _ in pairs),
        sparse_seconds=statistics.median(sparse for _, sparse in pairs),
    )


def sparse_from_tokens(times: StepTimes, context_length: int) -> int:
    """Return the depth from which sparse steps are 5 % faster; `context_length` is never.

    Both kinds are taken to grow linearly with depth from the same step at 512 tokens on.
    """
    span = times.depth_tokens - SHALLOW_TOKENS
    exact_slope = (times.exact_seconds - times.shallow_seconds) / span
    sparse_slope = (times.sparse_seconds - times.shallow_seconds) / span
    gain = (1 - LEAST_GAIN) * exact_slope - sparse_slope
    if gain <= 0:
        return context_length
    depth = SHALLOW_TOKENS + LEAST_GAIN * times.shallow_seconds / gain
    if depth >= context_length:
        return context_length
    rounded = math.ceil(depth / ROUNDING_TOKENS) * ROUNDING_TOKENS
    return min(rounded, context_length)
