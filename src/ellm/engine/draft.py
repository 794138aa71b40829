"""A small model that guesses for a large one: checked and counted first, then loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ellm.engine.opening import OpenedModel
from ellm.engine.parts import LoadProgress
from ellm.errors import ConfigError
from ellm.kv.block_pool import blocks_for
from ellm.program.memory import MemoryPlan, memory_plan
from ellm.program.native_executor import load_native
from ellm.speculative.draft_model import READ_ROWS, WINDOW_TOKENS, DraftModel

# Sequences that the small model can guess for at a time; others copy only.
DRAFTED_SEQUENCES = 4
_TOKENS_KEY = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A small model that fits a large one.

    Attributes:
        opened: Its header.
        vocab_size: V of the large model.
        cpus: One thread each.
        kv_type: Storage of keys and values.
        window_tokens: Tokens that it reads at least.
        memory: What it will take.
    """

    opened: OpenedModel
    vocab_size: int
    cpus: Sequence[int]
    kv_type: str
    window_tokens: int
    memory: MemoryPlan

    def load(self, *, mapped: bool, progress: LoadProgress | None) -> DraftModel:
        """Return the loaded model.

        Raises:
            EllmError: See `LLM`.
        """
        executor = load_native(
            self.opened.file,
            self.opened.program,
            cpus=self.cpus,
            num_blocks=_num_blocks(self.window_tokens),
            max_rows=READ_ROWS,
            kv_type=self.kv_type,
            mapped=mapped,
            progress=progress,
        )
        return DraftModel(executor, vocab_size=self.vocab_size, window_tokens=self.window_tokens)


def plan_draft(
    draft: OpenedModel, target: OpenedModel, *, cpus: Sequence[int], kv_type: str
) -> DraftPlan:
    """Return how `draft` guesses for `target`.

    Raises:
        ConfigError: Their vocabularies differ.
        UnsupportedError: A matrix has a shape that its format cannot hold.
    """
    _check_same_vocabulary(draft, target)
    window = min(WINDOW_TOKENS, draft.config.context_length // 2)
    memory = memory_plan(
        draft.file,
        draft.program,
        threads=len(cpus),
        num_blocks=_num_blocks(window),
        max_rows=READ_ROWS,
        kv_type=kv_type,
    )
    return DraftPlan(draft, target.program.vocab_size, cpus, kv_type, window, memory)


def _num_blocks(window_tokens: int) -> int:
    return DRAFTED_SEQUENCES * blocks_for(2 * window_tokens) + 1  # one to measure steps in


def _check_same_vocabulary(draft: OpenedModel, target: OpenedModel) -> None:
    """Compare token by token; one may have more at its end, which are padding.

    Raises:
        ConfigError: They differ; the message names the first difference.
    """
    ours, theirs = (model.file.metadata.get(_TOKENS_KEY) for model in (target, draft))
    if not isinstance(ours, list) or not isinstance(theirs, list):
        raise ConfigError("draft_model and model must have a vocabulary")
    for token_id, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if mine != other:
            raise ConfigError(
                f"draft_model has another vocabulary than the model: token {token_id} is "
                f"{other!r:.40} there and {mine!r:.40} here; a draft model must be of the same "
                "family, such as qwen2.5-coder-0.5b for qwen2.5-coder-1.5b"
            )
