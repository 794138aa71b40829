"""One request as the scheduler sees it: tokens, how many are cached, and the blocks it holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as TokenList
from dataclasses import dataclass, field

import numpy as np

from ellm.config.attention import EXACT
from ellm.engine.answer import Answer
from ellm.errors import EllmError
from ellm.kv.block_pool import BlockIds, blocks_for
from ellm.sparse.counts import ChoiceLog
from ellm.sparse.policy import AttentionPolicy
from ellm.sparse.tracing import BlockTracer
from ellm.speculative.chain import SequenceChains


@dataclass(slots=True, eq=False)
class Timeline:
    """Moments of a request on the monotonic clock, in seconds; None until they come."""

    submitted: float = field(default_factory=time.perf_counter)
    first_step: float | None = None
    first_token: float | None = None
    last_token: float | None = None


@dataclass(slots=True, eq=False)
class Reuse:
    """What of a sequence was read before, and under which names its blocks are shared.

    Attributes:
        root: What its keys are made under.
        keys: Of its first full blocks.
        kept_blocks: Its first blocks, which are shared already.
        to_restore: Blocks behind the cached ones that are to come from disk.
        memory_tokens: Prompt tokens whose blocks were in memory.
        disk_tokens: Prompt tokens whose blocks came from disk.
        used_bytes: Returns what blocks take in memory and on disk.
    """

    root: bytes = b""
    keys: list[bytes] = field(default_factory=list)
    kept_blocks: int = 0
    to_restore: int = 0
    memory_tokens: int = 0
    disk_tokens: int = 0
    used_bytes: Callable[[], tuple[int, int]] = lambda: (0, 0)

    @property
    def known_tokens(self) -> int:
        """Prompt tokens that did not have to be read."""
        return self.memory_tokens + self.disk_tokens


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt, its growing answer, and what of both is in the KV cache.

    Attributes:
        prompt: Token ids of the prompt.
        answer: What was generated.
        cached_tokens: Leading tokens whose keys and values are in `blocks`.
        blocks: KV blocks held, enough for the longest answer; empty while waiting.
        aborted: Set by `abort` from any thread; the engine ends the answer at the next step.
        error: Why this request alone failed, for its caller to raise.
        timeline: When things happened.
        attention: How the rows of the answer choose the blocks they read.
        choices: What they chose.
        tracer: Who keeps what they saw, if anybody does.
        chains: What guesses the tokens to come, if anything does.
        cache_salt: Who may share its blocks.
        reuse: What of it was read before.
    """

    prompt: TokenList[int]
    answer: Answer
    cached_tokens: int = 0
    blocks: BlockIds = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    aborted: bool = False
    error: EllmError | None = None
    timeline: Timeline = field(default_factory=Timeline)
    attention: AttentionPolicy = field(default_factory=lambda: AttentionPolicy(EXACT))
    choices: ChoiceLog = field(default_factory=ChoiceLog)
    tracer: BlockTracer | None = None
    chains: SequenceChains | None = None
    cache_salt: str = ""
    reuse: Reuse = field(default_factory=Reuse)

    @property
    def finished(self) -> bool:
        """Whether nothing more will be generated."""
        return self.answer.finish_reason is not None or self.error is not None

    @property
    def in_prefill(self) -> bool:
        """Whether prompt tokens are left to read."""
        return self.cached_tokens < len(self.prompt)

    @property
    def read_prompt_tokens(self) -> int:
        """Prompt tokens that were read."""
        return min(self.cached_tokens, len(self.prompt))

    @property
    def exact_tokens(self) -> int:
        """Leading tokens, cached or not, whose rows are all computed exactly."""
        prompt_tokens = len(self.prompt)
        end = prompt_tokens + self.answer.max_tokens
        if self.attention.rule_at(prompt_tokens) is not None:
            return prompt_tokens
        return prompt_tokens + self.attention.rows_alike(prompt_tokens, end - prompt_tokens)

    @property
    def blocks_needed(self) -> int:
        """Blocks for the longest answer; its last token is never fed back, so needs no place."""
        return blocks_for(len(self.prompt) + self.answer.max_tokens - 1)

    def guesses_left(self, position: int) -> int:
        """Return how many rows could follow one at `position` that attend by the same rule.

        The answer has room for the token of each.
        """
        room = self.answer.max_tokens - len(self.answer.tokens) - 1
        return self.attention.rows_alike(position, 1 + room) - 1

    def tokens(self, start: int, count: int) -> list[int]:
        """Return `count` tokens of prompt and answer from position `start` on."""
        prompt_end = len(self.prompt)
        if start + count <= prompt_end:
            return list(self.prompt[start : start + count])
        joined = [*self.prompt[start:], *self.answer.tokens[max(0, start - prompt_end) :]]
        return joined[:count]
