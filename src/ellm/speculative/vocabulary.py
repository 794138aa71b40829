"""What a small model guesses from: common tokens and those of the text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ellm.program.executor import GROUP_TOKENS, Tokens

# Vocabularies are ordered by how early a token was merged, so by how common it is. Of what models
# answer, 95 % is among these, and 98.5 % with the tokens of the text
# (shared/research/proto_draft.md, section 2).
COMMON_TOKENS = 32_768


class LikelyVocabulary:
    """Vocabulary groups with a common token, or with one that the text has."""

    def __init__(self, vocab_size: int, common_tokens: int = COMMON_TOKENS) -> None:
        """Start with the first `common_tokens` ids of `vocab_size`."""
        self._likely = np.zeros(-(-vocab_size // GROUP_TOKENS), dtype=np.bool_)
        self._likely[: -(-common_tokens // GROUP_TOKENS)] = True
        self._groups = self._found()

    @property
    def groups(self) -> Tokens:
        """The groups (G,), int32, ascending; see `TrimmedExecutor.step_trimmed`."""
        return self._groups

    def add(self, tokens: Sequence[int]) -> None:
        """Take in the tokens of a text; ids that the vocabulary lacks are left out."""
        groups = np.array(tokens, dtype=np.int32) // GROUP_TOKENS
        groups = groups[groups < self._likely.size]
        if not self._likely[groups].all():
            self._likely[groups] = True
            self._groups = self._found()

    def _found(self) -> Tokens:
        return np.flatnonzero(self._likely).astype(np.int32)
