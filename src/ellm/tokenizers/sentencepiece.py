"""SentencePiece-style vocabularies: merges rebuilt from scores, bytes as a fallback."""

from __future__ import annotations

import re

import numpy as np
from tokenizers import Tokenizer, models

from ellm.errors import InvalidModelError
from ellm.tokenizers.vocabulary import TokenType, Vocabulary

SPACE = "\u2581"
_NEVER_MERGED = frozenset({TokenType.CONTROL, TokenType.BYTE, TokenType.UNKNOWN})
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_values(vocabulary: Vocabulary, path: str) -> dict[int, int]:
    """Return the byte of each BYTE token, by id.

    Raises:
        InvalidModelError: A BYTE token is not spelt `<0xNN>`.
    """
    values = {}
    for i in vocabulary.ids_of_type(TokenType.BYTE):
        match = _BYTE_PIECE.fullmatch(vocabulary.pieces[i])
        if match is None:
            raise InvalidModelError(
                f"bad byte token {i}",
                path=path,
                found=repr(vocabulary.pieces[i][:64]),
                expected="<0x00> to <0xFF>",
            )
        values[i] = int(match[1], 16)
    return values


def piece_bytes(piece: str) -> bytes:
    """Return the bytes a normal piece stands for."""
    return piece.replace(SPACE, " ").encode()


def build_sentencepiece(vocabulary: Vocabulary, unknown_id: int | None) -> Tokenizer:
    """Build the encoder of plain text in which spaces are already written as U+2581.

    SentencePiece joins whichever neighbours form the piece of the highest score, leftmost first.
    That is BPE with one merge for each way to cut a piece into two pieces, ordered by score.
    Control and byte pieces are left out: text must never be joined into one.
    """
    pieces = vocabulary.pieces
    model = models.BPE(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=_merges(vocabulary),
        byte_fallback=True,
        fuse_unk=True,
        unk_token=None if unknown_id is None else pieces[unknown_id],
    )
    return Tokenizer(model)


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return all merges, best first; among equal scores the longer left half first.

    With equal scores SentencePiece takes the leftmost pair, so that a run of spaces or newlines
    grows from its left end. Preferring the longer left half does the same.
    """
    pieces, types, scores = vocabulary.pieces, vocabulary.types, vocabulary.scores
    if scores is None:
        return []
    order = np.argsort(-scores, kind="stable")
    ties_with_last = np.diff(scores[order], prepend=np.nan) == 0
    merges: list[tuple[str, str]] = []
    known = set(pieces)
    group_start, has_tie = 0, False
    for i, ties in zip(order.tolist(), ties_with_last.tolist(), strict=True):
        if ties:
            has_tie = True
        else:
            if has_tie:
                _longest_left_first(merges, group_start)
            group_start, has_tie = len(merges), False
        if types[i] in _NEVER_MERGED:
            continue
        piece = pieces[i]
        for cut in range(len(piece) - 1, 0, -1):
            if (left := piece[:cut]) in known and (right := piece[cut:]) in known:
                merges.append((left, right))
    if has_tie:
        _longest_left_first(merges, group_start)
    return merges


def _longest_left_first(merges: list[tuple[str, str]], start: int) -> None:
    merges[start:] = sorted(merges[start:], key=lambda merge: -len(merge[0]))
