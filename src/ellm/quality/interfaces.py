"""What measuring needs of an engine; `ellm.engine.llm.LLM` has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ellm.config.attention import AttentionConfig


class PromptTokenizer(Protocol):
    """What making a prompt needs of a tokenizer."""

    @property
    def has_chat_template(self) -> bool:
        """Whether the model takes messages."""

    @property
    def add_bos(self) -> bool:
        """Whether a plain prompt begins with a BOS token."""

    def encode(self, text: str, *, parse_special: bool = ..., add_bos: bool = ...) -> list[int]:
        """Return the tokens of plain text."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the tokens of a conversation."""


class QualityTokenizer(PromptTokenizer, Protocol):
    """What measuring needs of a tokenizer besides."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for."""


class Totals(Protocol):
    """What choosing blocks came to, over rows, layers and KV heads."""

    @property
    def blocks_read(self) -> int:
        """KV blocks that were read in full; 0 in exact mode."""

    @property
    def blocks_total(self) -> int:
        """KV blocks that there were to choose from; 0 in exact mode."""

    @property
    def skipped_mass(self) -> float:
        """Mean share of the attention in blocks that were not read in full."""


class ReplayedAnswer(Totals, Protocol):
    """An answer in one attention mode."""

    @property
    def text(self) -> str:
        """The answer."""


class Replay(Protocol):
    """A prompt that was read once and is answered in one mode after the other."""

    @property
    def totals(self) -> Totals:
        """What the rows of the last answer or tail chose."""

    def read(self, tokens: Sequence[int], on_read: Callable[[int], None] | None = None) -> None:
        """Read a prompt exactly, in place of the one before; `on_read` hears how far it is."""

    def answer(self, attention: AttentionConfig, max_tokens: int) -> ReplayedAnswer:
        """Return the greedy answer to the prompt."""

    def tail(
        self, tokens: Sequence[int], attention: AttentionConfig
    ) -> Iterator[NDArray[np.float32]]:
        """Feed tokens after the prompt one by one and yield the logits (V,) after each."""


class QualityEngine(Protocol):
    """A loaded model."""

    def replay(self, capacity_tokens: int) -> AbstractContextManager[Replay]:
        """Hold a replay with room for so many tokens of prompt and answer."""

    def abort(self) -> None:
        """End the running step, from any thread."""
