"""A model of one attention layer whose tokens have the queries, keys and values of our choice.

Haystack tokens have random keys. A fact is a token with a key of its own, and its question a token
whose query looks for that key: a row of the question should find the fact wherever it stands.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ellm.program.builder import ProgramBuilder
from ellm.program.executor import Floats, Tokens
from ellm.program.ops import RopeStyle, RopeTable
from tests.support.tiny_models import TinyModel, TinyTensor, tiny_config

HEAD_DIM = 64
HAYSTACK_TOKENS = 300
NUM_FACTS = 12
# With one key looked for, the fact holds more than 0.95 of a row's attention over 2,000 tokens.
SHARPNESS = 12.0


@dataclass(frozen=True)
class Needles:
    """The vocabulary: ids 0 .. HAYSTACK_TOKENS - 1 are haystack.

    Attributes:
        keys, queries, values: float32 (V, D).
    """

    keys: Floats
    queries: Floats
    values: Floats

    @property
    def model(self) -> TinyModel:
        """The model; its logits compare what a row found with every token's value."""
        return _attention_model(self.queries, self.keys, self.values)


def fact(index: int) -> int:
    """Return the token of a fact."""
    return HAYSTACK_TOKENS + index


def question(index: int) -> int:
    """Return the token that asks for a fact."""
    return HAYSTACK_TOKENS + NUM_FACTS + index


QUESTION_OF_BOTH = HAYSTACK_TOKENS + 2 * NUM_FACTS  # asks for facts 0 and 1 at once


def make_needles(
    *, common: float = 0.0, spread: float = 1.0, sharpness: float = SHARPNESS
) -> Needles:
    """Return random needles.

    Args:
        common: Length of what all keys share.
        spread: Length of what tells a key from the others.
        sharpness: Score of a fact for its question above that of the mean key, with `spread` 1.
    """
    rng = np.random.default_rng(11)
    vocabulary = QUESTION_OF_BOTH + 1
    shared = _unit_rows(rng.standard_normal((1, HEAD_DIM)))
    own = rng.standard_normal((vocabulary, HEAD_DIM))
    own = _unit_rows(own - own @ shared.T @ shared)
    facts = own[HAYSTACK_TOKENS : HAYSTACK_TOKENS + NUM_FACTS]
    queries = np.zeros_like(own)
    queries[question(0) : question(0) + NUM_FACTS] = facts
    queries[QUESTION_OF_BOTH] = facts[0] + facts[1]
    # What keys share then counts for every query, in all tokens alike.
    queries = (queries + shared) * np.float32(sharpness)
    keys = common * shared + spread * own
    # Questions are nothing that a question looks for: their keys are what all share.
    keys[question(0) :] = common * shared
    values = rng.standard_normal((vocabulary, HEAD_DIM)).astype(np.float32)
    return Needles(np.asarray(keys, np.float32), queries, values)


def haystack(tokens: int, seed: int = 0) -> Tokens:
    """Return random haystack tokens."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, HAYSTACK_TOKENS, tokens, dtype=np.int32)


def _unit_rows(vectors: NDArray[np.float64]) -> Floats:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def _attention_model(queries: Floats, keys: Floats, values: Floats) -> TinyModel:
    vocabulary = len(keys)
    # An epsilon as large as a mean square keeps small results small.
    builder = ProgramBuilder(
        vocab_size=vocabulary, num_heads=1, num_kv_heads=1, head_dim=HEAD_DIM, epsilon=1.0
    )
    qkv = builder.slot("qkv", 3 * HEAD_DIM)
    found = builder.slot("found", HEAD_DIM)
    builder.embed("token_embd.weight", qkv)
    builder.begin_layer()
    still = RopeTable((0.0,) * (HEAD_DIM // 2), 1.0, RopeStyle.HALVES)
    builder.rope_append(qkv, builder.rope_table(still))
    builder.attention(qkv, found, scale=1.0)
    builder.head(found, "output_norm.weight", "output.weight")
    tensors = {
        "token_embd.weight": np.concatenate([queries, keys, values], axis=1),
        "output_norm.weight": np.ones(HEAD_DIM, np.float32),
        "output.weight": values / np.float32(HEAD_DIM**0.5),
    }
    config = tiny_config(
        "llama", vocab_size=vocabulary, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=HEAD_DIM
    )
    stored = {name: TinyTensor("f32", t.shape, _bytes_of(t)) for name, t in tensors.items()}
    return TinyModel(config, builder.finish(), stored)


def _bytes_of(tensor: Floats) -> NDArray[np.uint8]:
    return np.ascontiguousarray(tensor, dtype=np.float32).reshape(-1).view(np.uint8)
