"""A prompt read once, answered or continued in several attention modes: fidelity is paired."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ellm.config.attention import AttentionConfig
from ellm.engine.core import Reservation
from ellm.engine.opened import OpenEngine
from ellm.errors import RequestError
from ellm.program.executor import BLOCK_TOKENS, ChoiceRule, Observation, RowChoices
from ellm.sparse.counts import ChoiceLog, ChoiceTotals
from ellm.sparse.policy import AttentionPolicy

# Answers may reach into the block after the prompt's last one: its float form is still there then.
MAX_ANSWER_TOKENS = BLOCK_TOKENS

_NO_ROWS = np.empty(0, dtype=np.int32)
_LAST_ROW = np.zeros(1, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class ReplayedAnswer:
    """A greedy answer.

    Attributes:
        token_ids: Its tokens, without the one that ended it.
        text: Their text.
        blocks_read: KV blocks its rows read in full, over layers and KV heads; 0 in exact mode.
        blocks_total: KV blocks there were; 0 in exact mode.
        skipped_mass: Mean share of the attention that was not read.
    """

    token_ids: list[int]
    text: str
    blocks_read: int
    blocks_total: int
    skipped_mass: float


class Replay:
    """KV blocks that hold one prompt at a time; made by `LLM.replay`."""

    def __init__(self, engine: OpenEngine, reservation: Reservation) -> None:
        """Use the blocks of `reservation`."""
        self._profile = engine.model.profile
        self._core = engine.core
        self._reservation = reservation
        self._tokenizer = engine.model.tokenizer
        self._prompt = np.empty(0, dtype=np.int32)
        self._last_logits = np.empty(0, dtype=np.float32)
        self.totals = ChoiceTotals()

    def read(self, tokens: Sequence[int], on_read: Callable[[int], None] | None = None) -> None:
        """Read a prompt exactly, in place of the one before; `on_read` hears how many tokens.

        Raises:
            RequestError: It is empty or does not fit.
            AbortedError: The engine was told to stop.
        """
        prompt = np.array(tokens, dtype=np.int32)
        self._require_room(prompt.size, 0)
        # What was read before is gone from here on, also if this fails half way.
        self._prompt = np.empty(0, dtype=np.int32)
        for start in range(0, prompt.size, self._core.max_step_rows):
            chunk = prompt[start : start + self._core.max_step_rows]
            is_last = start + chunk.size == prompt.size
            wanted = np.array([chunk.size - 1], dtype=np.int32) if is_last else _NO_ROWS
            logits, _ = self._core.run_reserved(self._reservation, chunk, start, logits_rows=wanted)
            if on_read is not None:
                on_read(start + chunk.size)
        self._prompt = prompt
        self._last_logits = logits[0]

    def answer(self, attention: AttentionConfig, max_tokens: int) -> ReplayedAnswer:
        """Answer the prompt greedily in this mode; again for another mode without reading again.

        Raises:
            RequestError: There is no prompt, or no room for `max_tokens`, at most 64.
            AbortedError: The engine was told to stop.
        """
        if not 1 <= max_tokens <= MAX_ANSWER_TOKENS:
            raise RequestError(
                f"max_tokens is {max_tokens}; a replayed answer has 1 to {MAX_ANSWER_TOKENS}"
            )
        self._require_room(self._prompt.size, max_tokens)
        log = ChoiceLog()
        answer: list[int] = []
        token = int(self._last_logits.argmax())
        while token not in self._tokenizer.eos_ids:
            answer.append(token)
            if len(answer) == max_tokens:
                break
            position = self._prompt.size + len(answer) - 1
            token = int(self._step(token, position, attention, log).argmax())
        self.totals = log.totals
        return ReplayedAnswer(
            answer,
            self._tokenizer.decode(answer),
            self.totals.blocks_read,
            self.totals.blocks_total,
            self.totals.skipped_mass,
        )

    def tail(
        self, tokens: Sequence[int], attention: AttentionConfig
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Feed tokens after the prompt one by one in this mode; yield the logits (V,) after each.

        Can be repeated for another mode; `totals` then says what the rows chose.

        Raises:
            RequestError: The prompt is no multiple of 64 tokens, or there is no room.
            AbortedError: The engine was told to stop.
        """
        if self._prompt.size % BLOCK_TOKENS:
            raise RequestError(
                f"a tail after {self._prompt.size} tokens; the prompt must be a multiple of "
                f"{BLOCK_TOKENS}, so that it can be continued more than once"
            )
        self._require_room(self._prompt.size, len(tokens))
        log = ChoiceLog()
        for position, token in enumerate(tokens, self._prompt.size):
            logits = self._step(token, position, attention, log)
            self.totals = log.totals
            yield logits

    def _step(
        self, token: int, position: int, attention: AttentionConfig, log: ChoiceLog
    ) -> npt.NDArray[np.float32]:
        rule = AttentionPolicy(attention, self._profile).rule_at(position)
        logits, choices = self.run(token, position, rule)
        if choices is not None:
            log.add(choices.counts, choices.rule.estimate)
        return logits

    def run(
        self,
        token: int,
        position: int,
        rule: ChoiceRule | None,
        observed: Observation | None = None,
    ) -> tuple[npt.NDArray[np.float32], RowChoices | None]:
        """Run one token at `position`; return its logits (V,) and what its row chose.

        Raises:
            AbortedError: The engine was told to stop.
        """
        logits, choices = self._core.run_reserved(
            self._reservation,
            np.array([token], dtype=np.int32),
            position,
            logits_rows=_LAST_ROW,
            rule=rule,
            observed=observed,
        )
        last: npt.NDArray[np.float32] = logits[0]
        return last, choices

    def _require_room(self, prompt_tokens: int, more_tokens: int) -> None:
        held = len(self._reservation.blocks) * BLOCK_TOKENS
        if prompt_tokens == 0 or prompt_tokens + more_tokens > held:
            raise RequestError(
                f"{prompt_tokens} tokens and {more_tokens} more; expected a prompt, and at most "
                f"{held} tokens in all"
            )
