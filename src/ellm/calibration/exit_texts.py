"""The texts of a probe: pieces to fit exits to, and others to choose and to check by."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ellm.calibration.plan import PIECE_TOKENS
from ellm.calibration.texts import halves
from ellm.errors import ConfigError
from ellm.program.executor import BLOCK_TOKENS, Tokens
from ellm.quality.fidelity import first_tokens
from ellm.quality.interfaces import QualityTokenizer
from ellm.quality.texts import Text
from ellm.units import format_count

CHOOSING_PIECES = 2
PROMPT_TOKENS = 128
MOST_PROMPTS = 8
# More than a minute reads on any CPU, and texts have to be encoded.
MOST_LEARNING_TOKENS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProbeTexts:
    """Texts cut into pieces of tokens.

    Attributes:
        learning: Pieces (512,) from the first halves of texts, the texts in turn.
        choosing: Two of them from the second halves.
        prompts: Prompts (128,) from what is left of those.
    """

    learning: tuple[Tokens, ...]
    choosing: tuple[Tokens, ...]
    prompts: tuple[Tokens, ...]


def probe_texts(tokenizer: QualityTokenizer, texts: Sequence[Text]) -> ProbeTexts:
    """Return the pieces of texts.

    Raises:
        ConfigError: No half of a text is long enough.
    """
    most_held_out = CHOOSING_PIECES * PIECE_TOKENS + MOST_PROMPTS * PROMPT_TOKENS
    first: list[list[Tokens]] = []
    choosing: list[list[Tokens]] = []
    prompts: list[list[Tokens]] = []
    for text in texts:
        learnt, held_out = halves(text.content)
        tokens = first_tokens(tokenizer, learnt, MOST_LEARNING_TOKENS // len(texts))
        first.append(_pieces(tokens, PIECE_TOKENS))
        tokens = first_tokens(tokenizer, held_out, most_held_out)
        choosing.append(_pieces(tokens, PIECE_TOKENS)[:CHOOSING_PIECES])
        left = tokens[PIECE_TOKENS * len(choosing[-1]) :]
        prompts.append(_pieces(left, PROMPT_TOKENS))
    found = ProbeTexts(
        learning=_in_turn(first),
        choosing=_in_turn(choosing)[:CHOOSING_PIECES],
        prompts=_in_turn(prompts)[:MOST_PROMPTS],
    )
    if not (found.learning and found.choosing and found.prompts):
        raise ConfigError(
            "the texts are too short to fit and check an exit: expected at least "
            f"{format_count(2 * (PIECE_TOKENS + PROMPT_TOKENS))} tokens in one of them"
        )
    return found


def blocks_of_prompts(num_blocks: int, num_prompts: int, answer_tokens: int) -> list[Tokens]:
    """Return KV block ids for as many prompts and their answers as there are blocks for."""
    each = -(-(PROMPT_TOKENS + answer_tokens) // BLOCK_TOKENS)
    count = min(num_prompts, num_blocks // each)
    ids = np.arange(count * each, dtype=np.int32)
    return [ids[begin : begin + each] for begin in range(0, ids.size, each)]


def _pieces(tokens: Sequence[int], size: int) -> list[Tokens]:
    """Return the whole pieces of a text."""
    whole = len(tokens) // size * size
    return list(np.array(tokens[:whole], dtype=np.int32).reshape(-1, size))


def _in_turn(lists: Sequence[Sequence[Tokens]]) -> tuple[Tokens, ...]:
    """Return the first of each list, then the second of each, and so on."""
    rounds = itertools.zip_longest(*lists)
    return tuple(piece for each in rounds for piece in each if piece is not None)
