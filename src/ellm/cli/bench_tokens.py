"""The tokens that a benchmark reads: those of a text file, or random ones."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ellm.cli.documents import MAX_FILE_BYTES
from ellm.cli.text_files import NotTextError, decode_text
from ellm.errors import ConfigError, RequestError, UnsupportedError
from ellm.units import count_of, format_bytes, format_count

if TYPE_CHECKING:
    from ellm.program.executor import Tokens

SEED = 0
# Few texts have more, so that of a long one little beyond the tokens needed is encoded.
_CHARACTERS_PER_TOKEN = 8


class BenchTokenizer(Protocol):
    """What this module needs of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""

    @property
    def special_ids(self) -> Set[int]:
        """Control tokens."""

    @property
    def add_bos(self) -> bool:
        """Whether a plain prompt begins with a BOS token."""

    def encode(self, text: str, *, parse_special: bool = ..., add_bos: bool = ...) -> list[int]:
        """Return the tokens of plain text."""


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ConfigError: It cannot be read, is too large or is no text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"the text {path} cannot be read: {reason}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"the text {path} is larger than {format_bytes(MAX_FILE_BYTES)}")
    try:
        return decode_text(data).text
    except NotTextError as error:
        raise ConfigError(f"the text {path} is no text: {error}") from error


def text_tokens(tokenizer: BenchTokenizer, text: str, count: int) -> Tokens:
    """Return the first `count` tokens of a text, int32 (count,).

    Raises:
        RequestError: The text has fewer.
    """
    import numpy as np

    characters = count * _CHARACTERS_PER_TOKEN
    while True:
        ids = tokenizer.encode(text[:characters], add_bos=tokenizer.add_bos)
        if len(ids) >= count:
            return np.array(ids[:count], dtype=np.int32)
        if characters >= len(text):
            raise RequestError(
                f"the text has {count_of(len(ids), 'token')}, the deepest of --depths needs "
                f"{format_count(count)}: give a longer text, or none for random tokens"
            )
        characters *= 2


def random_tokens(tokenizer: BenchTokenizer, count: int) -> Tokens:
    """Return `count` random tokens, int32 (count,), the same ones every time and none special.

    Raises:
        UnsupportedError: All of the model's tokens are special.
    """
    import numpy as np

    special = np.array(sorted(tokenizer.special_ids), dtype=np.int32)
    plain = np.setdiff1d(np.arange(tokenizer.vocab_size, dtype=np.int32), special)
    if not plain.size:
        raise UnsupportedError("every token of this model's vocabulary is a control token")
    return np.random.default_rng(SEED).choice(plain, count)
