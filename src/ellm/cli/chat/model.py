"""A loaded model as a chat uses it: it counts, answers and sums up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ellm.cli.chat.overflow import Room
from ellm.cli.chat.reply import Reply, stream_reply
from ellm.cli.console import Console
from ellm.cli.prompts import PromptTokenizer
from ellm.errors import AbortedError, EllmError

if TYPE_CHECKING:
    from ellm import LLM
    from ellm.cli.options import GenerationOptions

DEFAULT_MAX_TOKENS = 1024


def room_of(context_tokens: int, max_tokens: int | None) -> Room:
    """Return how much fits; without `-n` an answer gets 1,024 tokens, or a quarter of less."""
    return Room(context_tokens, max_tokens or min(DEFAULT_MAX_TOKENS, context_tokens // 4))


class EngineModel:
    """The model of one chat.

    Attributes:
        tokenizer: Its tokenizer.
        room: How much fits.
    """

    def __init__(self, console: Console, engine: LLM, options: GenerationOptions) -> None:
        """Answer with `engine` as `options` say."""
        self._console = console
        self._engine = engine
        self._options = options
        self.tokenizer: PromptTokenizer = engine.tokenizer
        self.room = room_of(engine.context_tokens, options.max_tokens)

    def count(self, messages: list[dict[str, str]]) -> int:
        """Return the tokens of a conversation.

        Raises:
            TemplateError: The model's template refuses it.
        """
        return len(self.tokenizer.encode_chat(messages))

    def reply(self, messages: list[dict[str, str]]) -> Reply:
        """Return the answer, which is printed as it comes.

        Raises:
            EllmError: The engine failed; what was printed stays.
        """
        params = self._options.sampling_params(self.room.answer_tokens)
        return stream_reply(
            self._console,
            self._engine,
            messages,
            params,
            label="reading",
            show=self._console.answer,
        )

    def sum_up(self, messages: list[dict[str, str]], max_tokens: int) -> str:
        """Return the whole answer to a request for a summary.

        Raises:
            AbortedError: Ctrl-C stopped it.
            EllmError: The engine failed, or the model said nothing.
        """
        params = self._options.sampling_params(max_tokens)
        reply = stream_reply(
            self._console,
            self._engine,
            messages,
            params,
            label="summing up",
            show=lambda _text: None,
        )
        if reply.finish_reason == "abort":
            raise AbortedError("the summary was stopped; nothing was left out")
        if not reply.text.strip():
            raise EllmError(
                "the model's summary is empty; nothing was left out: choose drop-oldest instead"
            )
        return reply.text.strip()
