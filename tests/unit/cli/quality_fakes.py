"""`ellm.cli.backend` for `ellm quality`: a word tokenizer and engines that replay no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ellm.cli import backend
from ellm.config.engine import EngineConfig
from tests.support.fake_replay import Answer, FakeReplayEngine, repeats_the_prompt
from tests.support.word_tokenizer import WordTokenizer


@dataclass
class FakeQualityBackend:
    """Every model is the same but for the noise of its logits."""

    context_length: int = 32_768
    answer: Answer = repeats_the_prompt
    delay_seconds: float = 0.0
    noises: tuple[float, ...] = (0.0, 0.0)
    on_call: Callable[[str], None] = lambda _call: None
    tokenizer: WordTokenizer = field(default_factory=WordTokenizer)
    tokenizers: dict[str, WordTokenizer] = field(default_factory=dict)
    references: list[str | None] = field(default_factory=list)
    loaded: list[tuple[str, EngineConfig]] = field(default_factory=list)
    engines: list[FakeReplayEngine] = field(default_factory=list)

    def install(self, replace: Callable[[object, str, object], None]) -> None:
        replace(backend, "find_model", self.find_model)
        replace(backend, "open_text", self.open_text)
        replace(backend, "load_llm", self.load_llm)

    def find_model(self, reference: str | None, console: object) -> Path:
        del console
        self.references.append(reference)
        return Path("models") / f"{reference or 'default'}.gguf"

    def open_text(self, path: Path) -> backend.ModelText:
        tokenizer = self.tokenizers.get(path.stem, self.tokenizer)
        return backend.ModelText(tokenizer, self.context_length, path)  # type: ignore[arg-type]

    def load_llm(self, source: Path, config: EngineConfig, console: object) -> FakeReplayEngine:
        del console
        assert all(engine.closed for engine in self.engines), "two models are in memory"
        self.loaded.append((source.stem, config))
        engine = FakeReplayEngine(
            self.tokenizer,
            answer=self.answer,
            noise=self.noises[len(self.engines)],
            delay_seconds=self.delay_seconds,
            on_call=self.on_call,
        )
        self.engines.append(engine)
        return engine
