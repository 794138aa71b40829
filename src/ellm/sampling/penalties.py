"""Repetition, presence and frequency penalties, kept up to date token by token."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ellm.config.sampling import SamplingParams


class Penalties:
    """Counts of the tokens a request has seen, and the change they make to its logits.

    The repetition penalty looks at the last `repetition_window_tokens` of prompt and answer, as
    llama.cpp does; presence and frequency look at the answer alone, as OpenAI and vLLM do: with a
    document for a prompt, anything else would forbid quoting it.

    Source: repetition penalty of CTRL (arXiv 1909.05858, section 4.1) with the sign rule of
    Hugging Face and llama.cpp; presence and frequency as in OpenAI's API reference.
    """

    def __init__(self, params: SamplingParams, prompt: Sequence[int], vocab_size: int) -> None:
        """Count the prompt; `vocab_size` is V."""
        self._repetition = np.float32(params.repetition_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._window = params.repetition_window_tokens
        self._recent: deque[int] = deque()
        self._recent_counts = np.zeros(vocab_size if self._repetition != 1 else 0, dtype=np.int32)
        self._answer_counts: dict[int, int] = {}
        for token in prompt if self._window is None else prompt[-self._window :]:
            self._add_recent(token)

    @property
    def active(self) -> bool:
        """Whether any penalty changes logits."""
        return bool(self._repetition != 1 or self._presence or self._frequency)

    def fork(self) -> Penalties:
        """Return counts that go on from these, and leave these alone."""
        fork = copy.copy(self)
        fork._recent = self._recent.copy()
        fork._recent_counts = self._recent_counts.copy()
        fork._answer_counts = self._answer_counts.copy()
        return fork

    def add(self, token: int) -> None:
        """Count a token that joined the answer."""
        self._add_recent(token)
        self._answer_counts[token] = self._answer_counts.get(token, 0) + 1

    def apply(self, logits: npt.NDArray[np.float32]) -> None:
        """Change `logits` (V,) in place."""
        if self._repetition != 1:
            seen = np.flatnonzero(self._recent_counts)
            values = logits[seen]
            logits[seen] = np.where(
                values > 0, values / self._repetition, values * self._repetition
            )
        if self._answer_counts and (self._presence or self._frequency):
            tokens = np.fromiter(self._answer_counts.keys(), np.int64, len(self._answer_counts))
            counts = np.fromiter(self._answer_counts.values(), np.float32, len(tokens))
            logits[tokens] -= self._presence + counts * self._frequency

    def _add_recent(self, token: int) -> None:
        if self._repetition == 1:
            return
        self._recent_counts[token] += 1
        if self._window is None:
            return
        self._recent.append(token)
        if len(self._recent) > self._window:
            self._recent_counts[self._recent.popleft()] -= 1
