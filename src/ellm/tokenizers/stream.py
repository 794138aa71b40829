"""Turns a stream of token ids into text that never ends in half a character."""

from __future__ import annotations

import codecs

from ellm.tokenizers.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes one answer, token by token.

    All that `push` and `flush` return, joined, equals `tokenizer.decode` of all the ids.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        """Start a text; `skip_special` leaves control tokens out, as in `Tokenizer.decode`."""
        self._codec = tokenizer.codec
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = True

    def push(self, token_id: int) -> str:
        """Take the next token and return the text that is now complete, often one piece, or "".

        Raises:
            RequestError: There is no such token.
        """
        data = self._codec.shown_bytes(token_id, skip_special=self._skip_special)
        if self._at_start and data:
            self._at_start = False
            data = self._codec.strip_prefix(data)
        return self._utf8.decode(data)

    def flush(self) -> str:
        """End the text: return what was withheld, as U+FFFD, for it can no longer be completed."""
        return self._utf8.decode(b"", final=True)
