"""The model of `fakes.py` as a chat uses it: it keeps what was said to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ellm.cli.chat.conversation import Conversation, Turn
from ellm.cli.chat.overflow import SUMMARY_REQUEST
from ellm.cli.chat.session_file import Session
from ellm.config.sampling import SamplingParams

from .fakes import FakeBackend, FakeChunk, FakeEngine, FakeProgress, FakeTokenizer

Messages = list[dict[str, str]]
SUMMARY = "they talked"


class FakeChatEngine(FakeEngine):
    """Answers messages; with `failing` it fails instead."""

    failing: Exception | None = None

    def __init__(self, *, tokenizer: FakeTokenizer, context_tokens: int, **known: Any) -> None:
        super().__init__(**known)
        self.tokenizer = tokenizer
        self.context_tokens = context_tokens
        self.said: list[Messages] = []

    def chat(
        self,
        messages: Messages,
        params: SamplingParams,
        *,
        stream: bool,
        progress: Callable[[FakeProgress], None],
    ) -> Iterator[FakeChunk]:
        assert stream
        self.said.append(messages)
        self.stopped.clear()
        if self.failing is not None:
            raise self.failing
        tokens = self.tokenizer.encode_chat(messages)
        assert len(tokens) + params.max_tokens <= self.context_tokens
        answer = self.answer
        if messages[-1]["content"] == SUMMARY_REQUEST:
            self.answer = SUMMARY
        yield from self.stream(tokens, params, progress=progress, tracer=None)
        self.answer = answer


@dataclass
class FakeChatBackend(FakeBackend):
    """`FakeBackend` whose engine chats."""

    def load_engine(
        self, path: Path, options: Any, context_tokens: int | None, console: object
    ) -> FakeEngine:
        del path, console
        engine = FakeChatEngine(
            answer=self.answer,
            delay_seconds=self.delay_seconds,
            options={"context_tokens": context_tokens, "options": options},
            tokenizer=self.tokenizer,
            context_tokens=context_tokens or self.context_length,
        )
        self.engines.append(engine)
        return engine

    @property
    def said(self) -> list[Messages]:
        """What was said to the last engine, request by request."""
        engine = self.engines[-1]
        assert isinstance(engine, FakeChatEngine)
        return engine.said


def contents(messages: Sequence[dict[str, str]]) -> list[str]:
    return [message["content"] for message in messages]


def session(*turns: Turn, used_seconds: float = 2e9, model: str | None = None) -> Session:
    return Session(
        model=model,
        model_file="fake.gguf",
        created_seconds=1e9,
        used_seconds=used_seconds,
        tokens=17,
        conversation=Conversation(turns=turns),
    )
