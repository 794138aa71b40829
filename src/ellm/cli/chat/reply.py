"""One answer of the model in a chat: streamed, and stopped by Ctrl-C without ending the chat."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from ellm.cli.console import Console
from ellm.cli.generation import reading_detail
from ellm.cli.interrupt import stream_interruptibly

if TYPE_CHECKING:
    from ellm import LLM, PromptProgress, SamplingParams, Stats


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model said.

    Attributes:
        text: As far as it came.
        finish_reason: What ended it: "stop", "length" or "abort".
        stats: Its figures, if the engine gave them.
    """

    text: str
    finish_reason: str
    stats: Stats | None


class _Stop:
    """Whether Ctrl-C was pressed; tells the engine, and again where it was too early to listen."""

    def __init__(self, engine: LLM) -> None:
        self._engine = engine
        self._wanted = False

    def ask(self, _signal: int, _frame: FrameType | None) -> None:
        self._wanted = True
        self._engine.abort()

    def repeat(self) -> None:
        if self._wanted:
            self._engine.abort()


def stream_reply(
    console: Console,
    engine: LLM,
    messages: list[dict[str, str]],
    params: SamplingParams,
    *,
    label: str,
    show: Callable[[str], None],
) -> Reply:
    """Answer messages; Ctrl-C ends the answer, which is then what came until there.

    Args:
        console: Where the progress goes.
        engine: The model.
        messages: What was said.
        params: How to sample.
        label: What the progress line says while the prompt is read.
        show: Called with each piece of the answer.

    Raises:
        EllmError: The engine failed.
    """
    line = console.progress(label)
    text, finish_reason, stats = "", "abort", None
    with _stopped_by_ctrl_c(engine) as stop:

        def progress(step: PromptProgress) -> None:
            stop.repeat()
            line.update(step.done_tokens, step.total_tokens, reading_detail(step))

        chunks = stream_interruptibly(
            lambda: engine.chat(messages, params, stream=True, progress=progress), engine.abort
        )
        with closing(chunks):
            for chunk in chunks:
                line.clear()
                text += chunk.text
                show(chunk.text)
                if chunk.finish_reason is not None:
                    finish_reason, stats = chunk.finish_reason, chunk.stats
                else:
                    stop.repeat()
        line.clear()
    return Reply(text, finish_reason, stats)


@contextmanager
def _stopped_by_ctrl_c(engine: LLM) -> Iterator[_Stop]:
    """Have Ctrl-C abort the engine instead of raising: then the answer ends as others do.

    KeyboardInterrupt was rejected: pressed twice, it would leave the chat from within the clean-up.
    """
    stop = _Stop(engine)
    before = signal.signal(signal.SIGINT, stop.ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
