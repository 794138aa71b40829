"""A model small enough to predict: words are tokens, and the answer is written beforehand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ellm.cli import backend
from ellm.config.sampling import SamplingParams
from ellm.speculative.counts import SourceCounts


@dataclass(frozen=True, kw_only=True)
class FakeStats:
    """The fields of `ellm.Stats`, with its computed ones written down."""

    prompt_tokens: int
    answer_tokens: int
    prompt_seconds: float = 0.5
    time_to_first_token_seconds: float = 0.6
    decode_seconds: float = 0.25
    model_load_ms: float = 12.4
    weights_bytes: int = 98_000_000
    kv_bytes: int = 2_000_000
    arena_bytes: int = 300_000
    peak_rss_bytes: int = 123_000_000
    isa: str = "scalar"
    threads: int = 2
    bytes_per_token: int = 100_000_000
    attention: str = "exact"
    kv_blocks_total: int = 0
    kv_blocks_read: int = 0
    widened: int = 0
    skipped_mass: float = 0.0
    cached_tokens_memory: int = 0
    cached_tokens_disk: int = 0
    kv_used_bytes: int = 0
    disk_used_bytes: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    tokens_per_step: float = 1.0
    guesses: dict[str, SourceCounts] = field(default_factory=dict)
    guessing_seconds: float = 0.0
    saved_seconds: float = 0.0
    prefill_tokens_per_second: float = field(default=250.0, init=False)
    decode_tokens_per_second: float = field(default=80.0, init=False)
    read_bandwidth_gb_per_s: float = field(default=16.0, init=False)
    decode_ceiling_tokens_per_second: float = field(default=160.0, init=False)
    mem_bandwidth_util: float = field(default=0.5, init=False)
    acceptance_rate: float = field(default=0.0, init=False)


@dataclass(frozen=True)
class FakeChunk:
    text: str
    finish_reason: str | None = None
    stats: FakeStats | None = None
    token_ids: tuple[int, ...] = (7,)


@dataclass(frozen=True)
class FakeProgress:
    done_tokens: int
    total_tokens: int
    tokens_per_second: float = 100.0
    seconds_left: float = 1.0


class FakeTokenizer:
    """One token per word; a chat adds four."""

    def __init__(self, *, has_chat_template: bool = True, add_bos: bool = False) -> None:
        self.has_chat_template = has_chat_template
        self.add_bos = add_bos
        self.words: list[str] = []
        self.encoded: list[str] = []

    def encode(self, text: str, *, parse_special: bool = False, add_bos: bool = False) -> list[int]:
        assert not parse_special
        self.encoded.append(text)
        ids = [1] if add_bos else []
        for word in text.split():
            self.words.append(word)
            ids.append(len(self.words) + 10)
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        text = " ".join(f"<{m['role']}> {m['content']}" for m in messages)
        return [2, 3, *self.encode(text), 4, 5]


class FakeEngine:
    """Streams its answer word by word until it is told to stop."""

    def __init__(self, answer: str, *, delay_seconds: float, options: Mapping[str, Any]) -> None:
        self.answer = answer
        self.delay_seconds = delay_seconds
        self.options = options
        self.requests: list[tuple[list[int], SamplingParams]] = []
        self.stopped = threading.Event()
        self.closed = False

    def stream(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        progress: Callable[[FakeProgress], None],
        tracer: object,
    ) -> Iterator[FakeChunk]:
        assert tracer is None
        self.requests.append((prompt, params))
        progress(FakeProgress(len(prompt) // 2, len(prompt)))
        progress(FakeProgress(len(prompt), len(prompt)))
        words = self.answer.split(" ")
        for number, word in enumerate(words):
            if self.stopped.is_set():
                yield FakeChunk("", "abort", FakeStats(prompt_tokens=1, answer_tokens=number))
                return
            last = number == len(words) - 1
            stats = FakeStats(prompt_tokens=len(prompt), answer_tokens=len(words))
            yield FakeChunk(
                word if last else word + " ", "stop" if last else None, stats if last else None
            )
            time.sleep(self.delay_seconds)

    def abort(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass
class FakeBackend:
    """Stands in for `ellm.cli.backend`."""

    answer: str = "ninety days notice"
    context_length: int = 100
    delay_seconds: float = 0.0
    tokenizer: FakeTokenizer = field(default_factory=FakeTokenizer)
    engines: list[FakeEngine] = field(default_factory=list)
    references: list[str | None] = field(default_factory=list)

    def install(self, replace: Callable[[object, str, object], None]) -> None:
        replace(backend, "find_model", self.find_model)
        replace(backend, "open_text", self.open_text)
        replace(backend, "load_engine", self.load_engine)

    def find_model(self, reference: str | None, console: object) -> Path:
        del console
        self.references.append(reference)
        return Path("models/fake.gguf")

    def open_text(self, path: Path) -> backend.ModelText:
        return backend.ModelText(self.tokenizer, self.context_length, path)  # type: ignore[arg-type]

    def load_engine(
        self, path: Path, options: Any, context_tokens: int, console: object
    ) -> FakeEngine:
        del path, console
        known = {"context_tokens": context_tokens, "options": options}
        engine = FakeEngine(self.answer, delay_seconds=self.delay_seconds, options=known)
        self.engines.append(engine)
        return engine

    @property
    def engine(self) -> FakeEngine:
        (engine,) = self.engines
        return engine
