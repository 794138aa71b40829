"""Reads and checks the vocabulary that GGUF metadata describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from ellm.errors import InvalidModelError, UnsupportedError

# The longest pieces of real vocabularies are runs of a few hundred spaces or dashes; a longer one
# only costs time, because every way to cut a piece in two is looked at.
MAX_PIECE_CHARS = 4096
MAX_VOCABULARY_CHARS = 1 << 24
MAX_TEMPLATE_BYTES = 1 << 20

PREFIX = "tokenizer.ggml."
MODEL_KINDS = ("gpt2", "llama")


class TokenType(IntEnum):
    """Kinds of token, with GGUF's numbers.

    Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, `tokenizer.ggml.token_type`.
    """

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A checked vocabulary.

    Attributes:
        kind: "gpt2" (byte-level BPE) or "llama" (SentencePiece).
        pieces: Text of each token, as stored; no two are equal.
        types: `TokenType` of each token, as one byte each.
        scores: float64 (V,), or None when the file has none; never None for "llama".
        merges: Two pieces with a space between them, best first; empty for "llama". Building the
            encoder checks them, `bad_merge` says which one is wrong: one by one in Python takes as
            long as building.
        pre: Name of the pre-tokenizer; "" when the file names none.
        special: Token ids by role ("bos", "eos", "eot", "eom", "unknown", "fim_pad", ...).
        flags: Booleans by name ("add_bos_token", "add_space_prefix", ...), where the file has them.
        chat_template: Jinja source, or None.
        path: The model file, for messages only.
    """

    kind: str
    pieces: list[str]
    types: bytes
    scores: npt.NDArray[np.float64] | None
    merges: list[str]
    pre: str
    special: Mapping[str, int]
    flags: Mapping[str, bool]
    chat_template: str | None
    path: str

    def bad_merge(self) -> InvalidModelError:
        """Return the error for the first merge that does not join two pieces to a third."""
        known = set(self.pieces)
        bad = next(
            (
                (i, merge)
                for i, merge in enumerate(self.merges)
                if merge.count(" ") != 1
                or not known.issuperset((*merge.split(" "), merge.replace(" ", "")))
            ),
            None,
        )
        return InvalidModelError(
            f"bad {PREFIX}merges",
            path=self.path,
            found="merges that cannot be used" if bad is None else f"merge {bad[0]} {bad[1]!r:.80}",
            expected="two pieces of the vocabulary, a space between them, that form a third",
        )

    def ids_of_type(self, *types: TokenType) -> frozenset[int]:
        """Return the ids of all tokens whose type is one of `types`."""
        wanted = np.isin(np.frombuffer(self.types, np.uint8), types)
        return frozenset(np.flatnonzero(wanted).tolist())


def read_vocabulary(metadata: Mapping[str, object], path: str) -> Vocabulary:
    """Check the `tokenizer.*` entries of `metadata` and return them typed.

    Args:
        metadata: GGUF metadata; array values are lists or one-dimensional NumPy arrays.
        path: The model file, for messages only.

    Raises:
        InvalidModelError: An entry is missing, of the wrong type, out of range or inconsistent.
        UnsupportedError: The tokenizer model is one eLLM does not implement.
    """
    reader = _Reader(metadata, path)
    kind = reader.text(PREFIX + "model", None)
    if kind not in MODEL_KINDS:
        raise UnsupportedError(
            f"{path or 'model data'}: tokenizer model {kind[:64]!r} is not implemented; "
            f"known are {', '.join(MODEL_KINDS)}"
        )
    pieces = reader.pieces()
    types = reader.types(len(pieces))
    template = reader.text("tokenizer.chat_template", "")
    if len(template) > MAX_TEMPLATE_BYTES:
        raise reader.invalid(
            "tokenizer.chat_template",
            f"{len(template)} characters",
            f"at most {MAX_TEMPLATE_BYTES}",
        )
    return Vocabulary(
        kind=kind,
        pieces=pieces,
        types=types,
        scores=reader.scores(len(pieces), required=kind == "llama"),
        merges=reader.strings(PREFIX + "merges") if kind == "gpt2" else [],
        pre=reader.text(PREFIX + "pre", ""),
        special=reader.special_ids(len(pieces)),
        flags=reader.flags(),
        chat_template=template or None,
        path=path,
    )


class _Reader:
    """Typed access to the tokenizer's metadata; every complaint is an `InvalidModelError`."""

    def __init__(self, metadata: Mapping[str, object], path: str) -> None:
        self._metadata = metadata
        self._path = path

    def invalid(self, key: str, found: str, expected: str) -> InvalidModelError:
        return InvalidModelError(f"bad {key}", path=self._path, found=found, expected=expected)

    def text(self, key: str, default: str | None) -> str:
        value = self._metadata.get(key, default)
        if value is None:
            raise self.invalid(key, "nothing", "a string")
        if not isinstance(value, str):
            raise self.invalid(key, type(value).__name__, "a string")
        self._check_unicode(key, value)
        return value

    def pieces(self) -> list[str]:
        key = PREFIX + "tokens"
        pieces = self.strings(key)
        if not pieces:
            raise self.invalid(key, "an empty list", "at least one token")
        lengths = list(map(len, pieces))
        if (longest := max(lengths)) > MAX_PIECE_CHARS:
            raise self.invalid(
                key,
                f"token {lengths.index(longest)} of {longest} characters",
                f"at most {MAX_PIECE_CHARS}",
            )
        if (total := sum(lengths)) > MAX_VOCABULARY_CHARS:
            raise self.invalid(key, f"{total} characters in all", f"at most {MAX_VOCABULARY_CHARS}")
        # llama.cpp gives empty tokens this name, too: they can be neither matched nor merged.
        pieces = [piece or f"[EMPTY_{i}]" for i, piece in enumerate(pieces)]
        if len(set(pieces)) != len(pieces):
            ((twice, _),) = Counter(pieces).most_common(1)
            raise self.invalid(key, f"{twice[:64]!r} twice", "different tokens")
        return pieces

    def types(self, count: int) -> bytes:
        key = PREFIX + "token_type"
        if key not in self._metadata:
            return bytes([TokenType.NORMAL]) * count
        values = self._numbers(key, count, kinds="iu")
        if values.min() < 0 or values.max() > max(TokenType):
            bad = values[(values < 0) | (values > max(TokenType))][0]
            raise self.invalid(key, f"type {bad}", f"0 to {int(max(TokenType))}")
        return values.astype(np.uint8).tobytes()

    def scores(self, count: int, *, required: bool) -> npt.NDArray[np.float64] | None:
        key = PREFIX + "scores"
        if key not in self._metadata and not required:
            return None
        values = self._numbers(key, count, kinds="iuf").astype(np.float64)
        if not np.isfinite(values).all():
            bad = int(np.flatnonzero(~np.isfinite(values))[0])
            raise self.invalid(key, f"{values[bad]} for token {bad}", "finite numbers")
        return values

    def special_ids(self, count: int) -> dict[str, int]:
        ids = {}
        for key, value in self._metadata.items():
            if not (key.startswith(PREFIX) and key.endswith("_token_id")):
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise self.invalid(key, type(value).__name__, "an integer")
            if not 0 <= value < count:
                raise self.invalid(key, str(value), f"0 to {count - 1}")
            ids[key.removeprefix(PREFIX).removesuffix("_token_id")] = int(value)
        return ids

    def flags(self) -> dict[str, bool]:
        flags = {}
        for name in ("add_bos_token", "add_eos_token", "add_space_prefix"):
            value = self._metadata.get(PREFIX + name)
            if value is None:
                continue
            if not isinstance(value, bool | np.bool_):
                raise self.invalid(PREFIX + name, type(value).__name__, "a boolean")
            flags[name] = bool(value)
        return flags

    def strings(self, key: str) -> list[str]:
        value = self._metadata.get(key)
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise self.invalid(
                key, "nothing" if value is None else type(value).__name__, "a list of strings"
            )
        strings = list(value)
        try:
            text = "".join(strings)
        except TypeError as error:
            i, item = next((i, s) for i, s in enumerate(strings) if not isinstance(s, str))
            raise self.invalid(key, f"{type(item).__name__} at {i}", "a list of strings") from error
        self._check_unicode(key, text)
        return strings

    def _check_unicode(self, key: str, text: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise self.invalid(key, "a lone surrogate", "Unicode text") from error

    def _numbers(self, key: str, count: int, *, kinds: str) -> npt.NDArray[Any]:
        value = self._metadata.get(key)
        if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str | bytes):
            raise self.invalid(
                key, "nothing" if value is None else type(value).__name__, "a list of numbers"
            )
        try:
            numbers = np.asarray(value)
        except (ValueError, OverflowError) as error:
            raise self.invalid(key, "values of different kinds", "a list of numbers") from error
        if numbers.ndim != 1 or numbers.dtype.kind not in kinds:
            raise self.invalid(
                key, f"{numbers.ndim} dimensions of {numbers.dtype}", "a list of numbers"
            )
        if len(numbers) != count:
            raise self.invalid(key, f"{len(numbers)} values", f"{count}, one per token")
        return numbers
