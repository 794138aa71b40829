"""An engine that replays prompts without a model: answers and logits are written down."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ellm.config.attention import EXACT, AttentionConfig
from ellm.engine.stats import NUMPY_FACTS
from ellm.errors import AbortedError
from ellm.sparse.policy import AttentionPolicy
from tests.support.word_tokenizer import WordTokenizer

BLOCK_TOKENS = 64
CHUNK_TOKENS = 512
Answer = Callable[[str, AttentionConfig], str]


@dataclass(frozen=True)
class FakeTotals:
    blocks_read: int
    blocks_total: int
    skipped_mass: float

    @classmethod
    def of(cls, attention: AttentionConfig) -> Self:
        return cls(0, 0, 0.0) if attention.mode == "exact" else cls(3, 10, 0.05)


@dataclass(frozen=True)
class FakeAnswer(FakeTotals):
    text: str


def repeats_the_prompt(prompt: str, attention: AttentionConfig) -> str:
    """Return what scores 1 in exact attention, and half the document in any other."""
    return prompt if attention.mode == "exact" else prompt[: len(prompt) // 2]


@dataclass
class FakeReplayEngine:
    """Stands in for `LLM`.

    Logits hang on all tokens before, and get noise of a size that hangs on mode and engine.
    """

    tokenizer: WordTokenizer
    answer: Answer = repeats_the_prompt
    noise: float = 0.0
    delay_seconds: float = 0.0
    on_call: Callable[[str], None] = lambda _call: None
    calls: list[str] = field(default_factory=list)
    capacities: list[int] = field(default_factory=list)
    aborted: threading.Event = field(default_factory=threading.Event)
    closed: bool = False
    facts = NUMPY_FACTS
    attention = AttentionPolicy(EXACT)

    def replay(self, capacity_tokens: int) -> FakeReplay:
        self.capacities.append(capacity_tokens)
        return FakeReplay(self, capacity_tokens)

    def abort(self) -> None:
        self.aborted.set()

    def note(self, call: str) -> None:
        self.calls.append(call)
        self.on_call(call)
        time.sleep(self.delay_seconds)
        if self.aborted.is_set():
            raise AbortedError("aborted between ops")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.closed = True


class FakeReplay:
    def __init__(self, engine: FakeReplayEngine, capacity_tokens: int) -> None:
        self._engine = engine
        self._capacity_tokens = capacity_tokens
        self._prompt: list[int] = []
        self.totals = FakeTotals(0, 0, 0.0)

    def read(self, tokens: Sequence[int], on_read: Callable[[int], None] | None = None) -> None:
        assert len(tokens) <= self._capacity_tokens
        self._engine.note("read")
        for done in (*range(CHUNK_TOKENS, len(tokens), CHUNK_TOKENS), len(tokens)):
            if on_read is not None:
                on_read(done)
        self._prompt = list(tokens)

    def answer(self, attention: AttentionConfig, max_tokens: int) -> FakeAnswer:
        assert len(self._prompt) + max_tokens <= self._capacity_tokens
        self._engine.note(f"answer {attention.mode}")
        text = self._engine.answer(self._engine.tokenizer.decode(self._prompt), attention)
        self.totals = FakeTotals.of(attention)
        return FakeAnswer(**vars(self.totals), text=text)

    def tail(
        self, tokens: Sequence[int], attention: AttentionConfig
    ) -> Iterator[NDArray[np.float32]]:
        assert len(self._prompt) % BLOCK_TOKENS == 0
        assert len(self._prompt) + len(tokens) <= self._capacity_tokens
        self._engine.note(f"tail {attention.mode}")
        amount = self._engine.noise + (0.0 if attention.mode == "exact" else 0.1)
        seed = zlib.crc32(np.array(self._prompt, np.int32).tobytes())
        for token in tokens:
            seed = zlib.crc32(token.to_bytes(4, "little"), seed)
            logits = _normal(seed, self._engine.tokenizer.vocab_size)
            if amount:
                logits += amount * _normal(seed ^ 0xFFFF, len(logits))
            self.totals = FakeTotals.of(attention)
            yield logits
            if self._engine.aborted.is_set():
                raise AbortedError("aborted between ops")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._engine.note("free")


def _normal(seed: int, count: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(count, np.float32)
