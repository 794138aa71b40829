"""What requests return: answers, chunks of a stream, scores and progress of the prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ellm.engine.stats import Stats
from ellm.sampling.logprobs import TokenLogprob

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished answer.

    Attributes:
        text: The answer; a stop string and what follows it are not part of it.
        token_ids: Every generated token, the one that ended the answer included.
        finish_reason: "stop" for an end token or stop string, "length" for `max_tokens` or a full
            context, "abort" if it was told to stop.
        stats: What it took.
        logprobs: One entry per token, or None if not asked for.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stats: Stats
    logprobs: tuple[TokenLogprob, ...] | None


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """What was added to an answer since the chunk before.

    Attributes:
        text: New text; empty while characters or a possible stop string are incomplete.
        token_ids: New tokens.
        logprobs: One entry per new token, or None if not asked for.
        finish_reason: Set in the last chunk only.
        stats: Set in the last chunk only.
    """

    text: str
    token_ids: list[int]
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: FinishReason | None
    stats: Stats | None


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far the prompts of one call have been read.

    Attributes:
        done_tokens: Prompt tokens read.
        total_tokens: Prompt tokens in all.
        tokens_per_second: Mean rate since the call began.
        seconds_left: Time left at that rate; attention makes late chunks somewhat slower.
    """

    done_tokens: int
    total_tokens: int
    tokens_per_second: float
    seconds_left: float


ProgressCallback = Callable[[PromptProgress], None]


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """What the model expected at each position of a given text of n tokens.

    Attributes:
        top1: int64 (n-1,); entry i is the most likely token after tokens 0..i.
        logprob: float64 (n-1,); entry i is the natural log-probability of token i+1.
    """

    top1: npt.NDArray[np.int64]
    logprob: npt.NDArray[np.float64]
