"""Text to token ids and back, for one vocabulary; knows nothing of chats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from tokenizers import Tokenizer as Encoder

from ellm.errors import RequestError
from ellm.tokenizers import byte_level, sentencepiece
from ellm.tokenizers.collector import collector_paused
from ellm.tokenizers.literals import LiteralMatcher
from ellm.tokenizers.pretokenizers import PreTokenizer
from ellm.tokenizers.vocabulary import TokenType, Vocabulary


class TextCodec:
    """Encodes and decodes like llama.cpp, with one difference: text never becomes a control token.

    Attributes:
        special_ids: Ids of control tokens and of the unknown token: never shown, and matched in
            text only where `parse_special` asks for it.
        control_pieces: Their texts and ids.
        unknown_id: What stands for text that cannot be encoded, or None where there is no such.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        rules: PreTokenizer | None,
        unknown_id: int | None,
        path: str,
    ) -> None:
        """Keep the vocabulary; `rules` are those of byte-level BPE, None for SentencePiece."""
        self._vocabulary = vocabulary
        self._rules = rules
        self._pieces = vocabulary.pieces
        self._types = vocabulary.types
        self._is_sentencepiece = rules is None
        self._space_prefix = self._is_sentencepiece and vocabulary.flags.get(
            "add_space_prefix", True
        )
        self._byte_values: dict[int, int] = {}
        if rules is None:
            self._byte_values = sentencepiece.byte_values(vocabulary, path)
        self.special_ids = vocabulary.ids_of_type(TokenType.CONTROL, TokenType.UNKNOWN)
        # SentencePiece writes characters it has no piece for as the unknown token; nothing else
        # of this kind may ever come out of plain text.
        self.unknown_id = unknown_id if rules is None else None
        self._forbidden = self.special_ids - {self.unknown_id}
        self._hidden = self.special_ids | vocabulary.ids_of_type(TokenType.UNUSED)
        self.control_pieces = {self._pieces[i]: i for i in self.special_ids}
        self._control = LiteralMatcher(self.control_pieces)
        self._user_defined = LiteralMatcher(
            {self._pieces[i]: i for i in vocabulary.ids_of_type(TokenType.USER_DEFINED)}
        )

    def prepare(self) -> None:
        """Build the encoder, which the first text would do otherwise.

        Raises:
            InvalidModelError: A merge does not join two pieces to a third.
        """
        _ = self._encoder

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Return the ids of `text`; control tokens are matched only with `parse_special`."""
        controls = self._control.find(text) if parse_special else ()
        return self.encode_between(text, controls)

    def find_control(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, id) of the control tokens written in `text`."""
        return self._control.find(text)

    def encode_between(self, text: str, controls: Iterable[tuple[int, int, int]]) -> list[int]:
        """Encode `text` with the (start, end, id) of `controls` as ids, all else as plain text.

        Raises:
            RequestError: The text holds a lone surrogate, which no encoding has.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text holds a lone surrogate (U+{ord(text[error.start]):04X}) at character "
                f"{error.start}, which is not Unicode text"
            ) from error
        ids: list[int] = []
        position = 0
        for start, end, token_id in controls:
            self._append_plain(ids, text[position:start])
            ids.append(token_id)
            position = end
        self._append_plain(ids, text[position:])
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD.

        Raises:
            RequestError: An id is not in the vocabulary.
        """
        data = b"".join(self.shown_bytes(i, skip_special=skip_special) for i in ids)
        return self.strip_prefix(data).decode(errors="replace")

    def strip_prefix(self, data: bytes) -> bytes:
        """Take away the space that encoding puts before a text, given the first bytes of it."""
        return data[1:] if self._space_prefix and data.startswith(b" ") else data

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token stands for; of a control token, its name.

        Raises:
            RequestError: There is no such token.
        """
        if not 0 <= token_id < len(self._pieces):
            raise RequestError(f"token id {token_id} is not in 0 to {len(self._pieces) - 1}")
        piece, kind = self._pieces[token_id], self._types[token_id]
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
            return piece.encode()
        if token_id in self._byte_values:
            return bytes([self._byte_values[token_id]])
        return (
            sentencepiece.piece_bytes(piece)
            if self._is_sentencepiece
            else byte_level.piece_bytes(piece)
        )

    def shown_bytes(self, token_id: int, *, skip_special: bool) -> bytes:
        """Return what a token adds to decoded text: nothing for skipped special tokens."""
        if skip_special and token_id in self._hidden:
            return b""
        return self.token_bytes(token_id)

    @cached_property
    def _encoder(self) -> Encoder:
        with collector_paused():
            if self._rules is None:
                return sentencepiece.build_sentencepiece(self._vocabulary, self.unknown_id)
            return byte_level.build_byte_level(self._vocabulary, self._rules)

    def _append_plain(self, ids: list[int], text: str) -> None:
        position = 0
        for start, end, token_id in self._user_defined.find(text):
            self._append_raw(ids, text[position:start])
            ids.append(token_id)
            position = end
        self._append_raw(ids, text[position:])

    def _append_raw(self, ids: list[int], text: str) -> None:
        if not text:
            return
        if self._is_sentencepiece:
            # Between two runs of plain text there is always a token matched as it stands, after
            # which SentencePiece starts anew: so every run gets the space, not just the first.
            prefix = sentencepiece.SPACE if self._space_prefix else ""
            text = prefix + text.replace(" ", sentencepiece.SPACE)
        found = self._encoder.encode(text, add_special_tokens=False).ids
        if self._forbidden.isdisjoint(found):
            ids.extend(found)
            return
        for token_id in found:
            ids.extend(self._spell(token_id) if token_id in self._forbidden else (token_id,))

    def _spell(self, token_id: int) -> list[int]:
        """Return ids that stand for the bytes of a control token some merge has produced."""
        piece = self._pieces[token_id]
        if self._is_sentencepiece:
            spelling = [f"<0x{byte:02X}>" for byte in sentencepiece.piece_bytes(piece)]
        else:
            spelling = list(piece)
        ids = [self._encoder.token_to_id(unit) for unit in spelling]
        return [i for i in ids if i is not None and i not in self._forbidden]
