"""An executor whose logits depend on every token it finds in its KV blocks, and on nothing else.

So a wrong block, position, chunk or order anywhere in the engine changes the answer, exactly.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ellm.errors import AbortedError
from ellm.program.executor import (
    BLOCK_TOKENS,
    GROUP_TOKENS,
    Logits,
    SequenceRows,
    Tokens,
    check_groups,
    check_step,
)

UNWRITTEN = -1


class FakeExecutor:
    """Keeps tokens where a model keeps keys and values.

    `before_step` is called with the number of the step and may raise, as a real step can. The
    logits after a text that holds `poison` are NaN.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 258,
        num_blocks: int = 8,
        max_rows: int = 512,
        before_step: Callable[[int], None] | None = None,
        poison: int | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.num_blocks = num_blocks
        self.max_rows = max_rows
        self.before_step = before_step
        self._poison = poison
        self.steps: list[list[SequenceRows]] = []
        self.forgotten: list[int] = []
        self._kv = np.full((num_blocks, BLOCK_TOKENS), UNWRITTEN, dtype=np.int32)
        self._abort = threading.Event()

    def step(self, tokens: Tokens, rows: Sequence[SequenceRows], logits_rows: Tokens) -> Logits:
        check_step(self, tokens, rows, logits_rows)
        self._check_written_blocks_are_own(rows)
        self._abort.clear()
        self.steps.append(list(rows))
        if self.before_step is not None:
            self.before_step(len(self.steps))
        if self._abort.is_set():
            raise AbortedError("aborted between ops")
        contexts: list[bytes] = []
        first = 0
        for part in rows:
            contexts += self._append(tokens[first : first + part.count], part)
            first += part.count
        logits = np.empty((len(logits_rows), self.vocab_size), dtype=np.float32)
        for index, row in enumerate(logits_rows):
            logits[index] = logits_after(contexts[row], self.vocab_size)
            if self._poison in np.frombuffer(contexts[row], np.int32):
                logits[index] = np.nan
        return logits

    def step_trimmed(
        self, tokens: Tokens, rows: Sequence[SequenceRows], logits_rows: Tokens, groups: Tokens
    ) -> Logits:
        check_groups(self, groups)
        logits = self.step(tokens, rows, logits_rows)
        logits[:, ~np.isin(np.arange(self.vocab_size) // GROUP_TOKENS, groups)] = -np.inf
        return logits

    def abort(self) -> None:
        self._abort.set()

    def forget(self, blocks: NDArray[np.int32]) -> None:
        self.forgotten += blocks.tolist()

    @property
    def block_bytes(self) -> int:
        return 4 * BLOCK_TOKENS

    def read_block(self, block: int) -> NDArray[np.uint8]:
        assert (self._kv[block] != UNWRITTEN).all(), "a block that is not full was read"
        return self._kv[block].view(np.uint8).copy()

    def write_block(self, block: int, stored: NDArray[np.uint8]) -> None:
        self._kv[block] = stored.view(np.int32)

    def _check_written_blocks_are_own(self, rows: Sequence[SequenceRows]) -> None:
        for part in rows:
            first, last = part.start // BLOCK_TOKENS, (part.start + part.count - 1) // BLOCK_TOKENS
            written = set(part.blocks[first : last + 1].tolist())
            assert len(set(part.blocks.tolist())) == len(part.blocks), "a block is there twice"
            for other in rows:
                if other is not part:
                    assert not written & set(other.blocks.tolist()), "a block of two is written"

    def _append(self, tokens: Tokens, part: SequenceRows) -> list[bytes]:
        contexts = []
        for position, token in enumerate(tokens.tolist(), part.start):
            self._kv[part.blocks[position // BLOCK_TOKENS], position % BLOCK_TOKENS] = token
            cached = self._kv[part.blocks].reshape(-1)[: position + 1]
            assert (cached != UNWRITTEN).all(), "a token was skipped"
            contexts.append(cached.tobytes())
        return contexts


def logits_after(context: bytes, vocab_size: int) -> np.ndarray:
    """Return the logits (V,) that follow the int32 tokens in `context`."""
    return np.random.default_rng(zlib.crc32(context)).standard_normal(vocab_size, np.float32) * 4


def expected_greedy(prompt: Sequence[int], count: int, vocab_size: int = 258) -> list[int]:
    """Return the greedy answer, by asking for one token after the other."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_after(np.array(tokens, np.int32).tobytes(), vocab_size).argmax()))
    return tokens[len(prompt) :]
