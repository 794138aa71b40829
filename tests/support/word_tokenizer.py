"""A tokenizer whose tokens are words, digits and marks: as coarse as a real one, and exact."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

VOCAB_SIZE = 50_000
BOS, USER, END, ASSISTANT = range(4)
_CONTROL = ("<s>", "<user>", "<end>", "<assistant>")
_PIECE = re.compile(r" ?[A-Za-z]+|\d|\n+|[^\S\n]+|.", re.DOTALL)


class WordTokenizer:
    """Numbers the pieces of texts in the order it meets them."""

    def __init__(self, *, has_chat_template: bool = True, add_bos: bool = False) -> None:
        self.has_chat_template = has_chat_template
        self.add_bos = add_bos
        self.vocab_size = VOCAB_SIZE
        self.texts_encoded = 0
        self._pieces = list(_CONTROL)
        self._ids: dict[str, int] = {}

    def encode(self, text: str, *, parse_special: bool = False, add_bos: bool = False) -> list[int]:
        assert not parse_special
        self.texts_encoded += 1
        return ([BOS] if add_bos else []) + [self._id(piece) for piece in _PIECE.findall(text)]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        (message,) = messages
        assert message["role"] == "user"
        return [BOS, USER, *self.encode(message["content"]), END, ASSISTANT]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self._pieces[token] for token in ids)

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id].encode()

    def _id(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
            assert len(self._pieces) <= VOCAB_SIZE
        return self._ids[piece]
