"""Log-probabilities of tokens under the unmodified logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from ellm.sampling.filters import top_k


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """What the model thought of one generated token.

    Attributes:
        token_id: The token that was chosen.
        logprob: Its natural log-probability.
        top: (token id, log-probability) of the most likely tokens, most likely first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class LogSoftmax:
    """Turns logits of one row into log-probabilities, in float64.

    The largest logit is taken off first, then the log of the sum: their own sum would swallow the
    small one.
    """

    largest: float
    log_sum: float

    @classmethod
    def of(cls, logits: npt.NDArray[np.float32]) -> Self:
        """Return the log-softmax of `logits` (V,)."""
        largest = float(logits.max())
        shifted = logits.astype(np.float64)
        shifted -= largest
        return cls(largest, float(np.log(np.exp(shifted, out=shifted).sum())))

    def __call__(self, logit: np.float32) -> float:
        """Return the log-probability of a token with this logit."""
        return float(logit) - self.largest - self.log_sum


def token_logprob(logits: npt.NDArray[np.float32], token: int, count: int) -> TokenLogprob:
    """Return the log-probability of `token` and of the `count` most likely tokens."""
    log_softmax = LogSoftmax.of(logits)
    best = top_k(logits, count) if count else np.empty(0, dtype=np.int64)
    best = best[np.argsort(-logits[best], kind="stable")]
    return TokenLogprob(
        token_id=token,
        logprob=log_softmax(logits[token]),
        top=tuple((int(item), log_softmax(logits[item])) for item in best),
    )
