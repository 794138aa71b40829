"""`--trace FILE`: which KV blocks an answer's rows read, as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ellm.cli.json_file import ANOTHER_FILE, require_writable, write_whole
from ellm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ellm import LLM
    from ellm.cli.trace_page import BlockTrace
    from ellm.sparse.tracing import BlockTracer


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """A page to be written after an answer.

    Attributes:
        path: Where to.
        question: What is asked, for the page.
        model: The model's name, for the page.
    """

    path: Path
    question: str
    model: str

    def check(self, *, kv_type: str) -> None:
        """Refuse what cannot work, before the minutes that an answer takes.

        Raises:
            ConfigError: The file cannot be written.
            RequestError: The KV cache keeps no masses of blocks.
        """
        if kv_type != "int8":
            raise RequestError(f"--trace takes --kv-type int8, found {kv_type}")
        require_writable(self.path, advice=ANOTHER_FILE)

    def tracer(self, engine: LLM) -> BlockTracer:
        """Return what collects the rows of one answer."""
        from ellm.sparse.tracing import BlockTracer

        config = engine.config
        return BlockTracer(num_layers=config.num_layers, num_kv_heads=config.num_kv_heads)

    def write(
        self, engine: LLM, tracer: BlockTracer, prompt: Sequence[int], answer: Sequence[int]
    ) -> bool:
        """Write the page; return False where no row of an answer was traced.

        Raises:
            ConfigError: The file cannot be written.
        """
        from ellm.cli.trace_page import trace_page

        if not tracer.rows:
            return False
        page = trace_page(self._trace(engine, tracer, [*prompt, *answer], len(prompt)))
        write_whole(self.path, page, advice=ANOTHER_FILE)
        return True

    def _trace(
        self, engine: LLM, tracer: BlockTracer, tokens: list[int], prompt_tokens: int
    ) -> BlockTrace:
        import numpy as np

        from ellm.cli.trace_page import BlockTrace
        from ellm.program.executor import BLOCK_TOKENS

        last = max(tracer.positions)
        starts = range(0, last + 1, BLOCK_TOKENS)
        decode = engine.tokenizer.decode
        shares = tracer.shares(len(starts))
        return BlockTrace(
            shares=np.abs(shares),
            # The sign says it, of zero too: what a row read can hold next to nothing.
            read=~np.signbit(shares),
            positions=np.array(tracer.positions, dtype=np.int64),
            block_texts=[decode(tokens[start : start + BLOCK_TOKENS]) for start in starts],
            answer_pieces=[decode([tokens[position + 1]]) for position in tracer.positions],
            prompt_tokens=prompt_tokens,
            mode=engine.attention.config.mode,
            mass=engine.attention.mass,
            model=self.model,
            question=self.question,
        )
