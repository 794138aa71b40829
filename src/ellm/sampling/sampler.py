"""One request's way from logits to token: penalties, bias, filters, temperature, draw."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from ellm.config.sampling import SamplingParams
from ellm.errors import NativeError, RequestError
from ellm.sampling.filters import min_p, top_k, top_p
from ellm.sampling.penalties import Penalties

RUN_TOKENS = 512  # about the square root of the largest V


class Sampler:
    """Chooses the next token of one request; the order of the stages is llama.cpp's.

    A seed fixes the choices: the generator is the request's own, and a token takes one draw from
    it, so neither other requests nor the filters shift what comes later.
    """

    def __init__(self, params: SamplingParams, prompt: Sequence[int], vocab_size: int) -> None:
        """Prepare for a request with this prompt and a model of V = `vocab_size` tokens.

        Raises:
            RequestError: `logit_bias` or `stop_token_ids` names a token the model has not.
        """
        for field, tokens in (
            ("logit_bias", params.logit_bias),
            ("stop_token_ids", params.stop_token_ids),
        ):
            unknown = [token for token in tokens if token >= vocab_size]
            if unknown:
                raise RequestError(
                    f"{field} names token {unknown[0]}; the model's ids are 0..{vocab_size - 1}"
                )
        self._params = params
        self._penalties = Penalties(params, prompt, vocab_size)
        self._bias_tokens = np.array(list(params.logit_bias), dtype=np.int64)
        self._biases = np.array(list(params.logit_bias.values()), dtype=np.float32)
        self._generator = np.random.Generator(np.random.PCG64(params.seed))

    def fork(self) -> Sampler:
        """Return a sampler that makes the same choices from here on, and leaves this one alone."""
        fork = copy.copy(self)
        fork._penalties = self._penalties.fork()
        fork._generator = copy.deepcopy(self._generator)
        return fork

    def sample(self, logits: npt.NDArray[np.float32], *, forbidden: Collection[int] = ()) -> int:
        """Return the next token for `logits` (V,), which are left as they are.

        `forbidden` tokens cannot be chosen (tokens that would end the answer too early).

        Raises:
            NativeError: The logits hold NaN or no finite maximum: never guess from garbage.
            RequestError: Every token is forbidden.
        """
        _check_finite(logits)
        adjusted = self._adjusted(logits, forbidden)
        token = int(adjusted.argmax()) if not self._params.temperature else self._draw(adjusted)
        self._penalties.add(token)
        return token

    def _adjusted(
        self, logits: npt.NDArray[np.float32], forbidden: Collection[int]
    ) -> npt.NDArray[np.float32]:
        if not (self._penalties.active or len(self._bias_tokens) or forbidden):
            return logits
        adjusted = logits.copy()
        self._penalties.apply(adjusted)
        adjusted[self._bias_tokens] += self._biases
        adjusted[list(forbidden)] = -np.inf
        if adjusted.max() == -np.inf:
            raise RequestError(
                f"min_tokens={self._params.min_tokens} forbids every token of the model: "
                f"stop_token_ids names all {len(logits)}"
            )
        return adjusted

    def _draw(self, logits: npt.NDArray[np.float32]) -> int:
        ids = self._filtered(logits)
        kept = logits if ids is None else logits[ids]
        # The difference first: dividing by a tiny temperature then gives 0 and -inf, never NaN.
        with np.errstate(over="ignore"):
            scaled = (kept - kept.max()).astype(np.float64) / self._params.temperature
        index = _pick(np.exp(scaled, out=scaled), self._generator.random())
        return index if ids is None else int(ids[index])

    def _filtered(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.int64] | None:
        """Return ids of the tokens that stay in the draw, or None for all of them."""
        params = self._params
        ids: npt.NDArray[np.int64] | None = None
        if 0 < params.top_k < len(logits):
            ids = top_k(logits, params.top_k)
        if params.top_p < 1:
            kept = top_p(logits if ids is None else logits[ids], params.top_p)
            ids = kept if ids is None else ids[kept]
        if params.min_p > 0:
            kept = min_p(logits if ids is None else logits[ids], params.min_p)
            ids = kept if ids is None else ids[kept]
        return ids


def _pick(weights: npt.NDArray[np.float64], point: float) -> int:
    """Return the index where the running sum of `weights` (n,) passes `point` (0..1) of its total.

    Runs are summed first and only one is looked into: a running sum over all of V takes 1 ms.
    """
    starts = np.arange(0, len(weights), RUN_TOKENS)
    run, rest = _pass(np.add.reduceat(weights, starts), point)
    start = int(starts[run])
    index, _ = _pass(weights[start : start + RUN_TOKENS], rest)
    return start + index


def _pass(weights: npt.NDArray[np.float64], point: float) -> tuple[int, float]:
    """Return the index that `point` (0..1) of the total falls into, and where in it (0..1)."""
    sums = np.cumsum(weights)
    target = point * sums[-1]
    # "right" skips weights of zero. Rounding may put the target on the very end: then the last
    # weight that is not zero is meant.
    last = np.searchsorted(sums, sums[-1], side="left")
    index = int(min(np.searchsorted(sums, target, side="right"), last))
    before = float(sums[index - 1]) if index else 0.0
    return index, min(max((float(target) - before) / float(weights[index]), 0.0), 1.0)


def _check_finite(logits: npt.NDArray[np.float32]) -> None:
    # max() is NaN if any element is, so one pass finds NaN and infinity alike.
    largest = logits.max()
    if not np.isfinite(largest):
        raise NativeError(
            f"the largest of {len(logits)} logits is {largest}, expected a finite number; "
            "the model's weights are damaged or the build is broken"
        )
