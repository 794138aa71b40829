"""A growing answer: logits in, tokens and showable text out, until something ends it."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ellm.config.sampling import SamplingParams
from ellm.engine.outputs import FinishReason
from ellm.sampling.logprobs import TokenLogprob, token_logprob
from ellm.sampling.sampler import Sampler
from ellm.sampling.stop import StopChecker


class TextDecoder(Protocol):
    """Turns tokens into text, never half a character; `tokenizers.StreamDecoder` is one."""

    def push(self, token: int, /) -> str:
        """Take a token and return the text that is complete now."""

    def flush(self) -> str:
        """Return what is left of the text."""


class Answer:
    """Tokens, text and log-probabilities of one answer.

    Attributes:
        tokens: Generated tokens, the one that ended the answer included.
        pieces: Text that may be shown, in the order it became known.
        logprobs: One entry per token if they were asked for, else empty.
        finish_reason: What ended the answer, or None while it grows.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        max_tokens: int,
        end_tokens: Set[int],
        sampler: Sampler,
        decoder: TextDecoder,
    ) -> None:
        """Start empty; `max_tokens` is what the context leaves, too, `end_tokens` end a turn."""
        self.tokens: list[int] = []
        self.pieces: list[str] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: FinishReason | None = None
        self.max_tokens = max_tokens
        self._params = params
        self._end_tokens = frozenset(params.stop_token_ids) | (
            frozenset() if params.ignore_eos else frozenset(end_tokens)
        )
        self._sampler = sampler
        self._decoder = decoder
        self._stop = StopChecker(tuple(params.stop))

    @property
    def text(self) -> str:
        """All text that may be shown."""
        return "".join(self.pieces)

    def logprobs_of(self, tokens: slice) -> tuple[TokenLogprob, ...] | None:
        """Return the entries of these tokens, or None if none were asked for."""
        return None if self._params.logprobs is None else tuple(self.logprobs[tokens])

    def guesser(self) -> Callable[[npt.NDArray[np.float32]], int]:
        """Return what samples as this answer would go on, token by token, and leaves no trace."""
        fork: Sampler | None = None
        count = len(self.tokens)

        def guess(logits: npt.NDArray[np.float32]) -> int:
            nonlocal fork, count
            fork = fork or self._sampler.fork()
            may_end = count >= self._params.min_tokens
            count += 1
            return fork.sample(logits, forbidden=() if may_end else self._end_tokens)

        return guess

    def take(self, logits: npt.NDArray[np.float32]) -> None:
        """Add the token that `logits` (V,) lead to.

        Raises:
            NativeError: The logits are not numbers.
        """
        may_end = len(self.tokens) >= self._params.min_tokens
        token = self._sampler.sample(logits, forbidden=() if may_end else self._end_tokens)
        if self._params.logprobs is not None:
            self.logprobs.append(token_logprob(logits, token, self._params.logprobs))
        self.tokens.append(token)
        if token in self._end_tokens:
            self.finish("stop")
            return
        text = self._decoder.push(token)
        self.pieces.append(self._stop.push(text) if may_end else text)
        if self._stop.found is not None:
            self.finish_reason = "stop"
        elif len(self.tokens) == self.max_tokens:
            self.finish("length")

    def finish(self, reason: FinishReason) -> None:
        """End the answer, showing text that was withheld unless it holds a stop string."""
        self.pieces.append(self._stop.push(self._decoder.flush()))
        found = self._stop.found is not None
        self.pieces.append(self._stop.flush())
        self.finish_reason = "stop" if found else reason
