"""How a KV block lies in a page file: a header that names it, then its bytes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

FORMAT_VERSION = 1
PAGE_TOKENS = 64
KEY_BYTES = 32
FINGERPRINT_BYTES = 32
# In the place of the parent's key: the block is the first of its sequence.
NO_PARENT = bytes(KEY_BYTES)

# Pages begin at multiples of a file system block: no two share one, so a write that is torn by a
# power cut damages no neighbour, and a scan finds the next page after a damaged one.
ALIGNMENT = 4096
HEADER_BYTES = 512

_MAGIC = b"eLLMpage"
_CHECKSUM_BYTES = 16
# Magic, version, tokens, payload bytes, created, fingerprint, key, parent, payload's checksum.
_FIELDS = struct.Struct(f"<8sIIQQ{FINGERPRINT_BYTES}s{KEY_BYTES}s{KEY_BYTES}s{_CHECKSUM_BYTES}s")
_TOKENS_BYTES = 4 * PAGE_TOKENS
_SUMMED_BYTES = HEADER_BYTES - _CHECKSUM_BYTES

Tokens = Sequence[int] | NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageHeader:
    """What a page says about itself.

    Attributes:
        fingerprint: Of the model and the form of its KV, 32 bytes.
        key: Names the block and all before it, 32 bytes.
        parent: Key of the block before it, `NO_PARENT` for the first.
        tokens: The block's 64 tokens, int32, little endian.
        payload_bytes: Bytes of the block.
        payload_checksum: Of these bytes.
        created_seconds: When it was written, by the wall clock.
    """

    fingerprint: bytes
    key: bytes
    parent: bytes
    tokens: bytes
    payload_bytes: int
    payload_checksum: bytes
    created_seconds: int

    def pack(self) -> bytes:
        """Return the header's 512 bytes: fields, tokens, zeros, checksum of all these."""
        fields = _FIELDS.pack(
            _MAGIC,
            FORMAT_VERSION,
            PAGE_TOKENS,
            self.payload_bytes,
            self.created_seconds,
            self.fingerprint,
            self.key,
            self.parent,
            self.payload_checksum,
        )
        summed = (fields + self.tokens).ljust(_SUMMED_BYTES, b"\0")
        return summed + checksum(summed)

    @classmethod
    def parse(cls, raw: bytes | bytearray) -> Self | None:
        """Return the header in `raw`, None if it is damaged or of another version."""
        if len(raw) != HEADER_BYTES or checksum(raw[:_SUMMED_BYTES]) != raw[_SUMMED_BYTES:]:
            return None
        magic, version, tokens, payload_bytes, created, *names = _FIELDS.unpack_from(raw)
        if (magic, version, tokens) != (_MAGIC, FORMAT_VERSION, PAGE_TOKENS):
            return None
        fingerprint, key, parent, payload_checksum = names
        return cls(
            fingerprint=fingerprint,
            key=key,
            parent=parent,
            tokens=bytes(raw[_FIELDS.size : _FIELDS.size + _TOKENS_BYTES]),
            payload_bytes=payload_bytes,
            payload_checksum=payload_checksum,
            created_seconds=created,
        )


def page_bytes(payload_bytes: int) -> int:
    """Return the bytes that a page takes in its file: header, payload, and up to the next page."""
    return -(-(HEADER_BYTES + payload_bytes) // ALIGNMENT) * ALIGNMENT


def checksum(data: bytes | bytearray | memoryview) -> bytes:
    """Return the 16-byte checksum of `data`: BLAKE2b, which no accident gets past.

    One core of an EPYC does 550 MB/s, without special instructions. SHA-256 reaches 1,260 there but
    330 on CPUs without SHA instructions, as Xeons before Ice Lake are. CRC-32 (3,100 MB/s) lets one
    in 4e9 damaged pages through, and each would be a wrong answer. More than 2 KB are summed
    without the GIL.
    """
    return hashlib.blake2b(data, digest_size=_CHECKSUM_BYTES, usedforsecurity=False).digest()


def pack_tokens(tokens: Tokens) -> bytes:
    """Return the 64 tokens of a block as its page holds them.

    Raises:
        ValueError: They are not 64, or not int32.
    """
    ids = np.asarray(tokens)
    if ids.shape != (PAGE_TOKENS,) or ids.dtype.kind not in "iu":
        raise ValueError(
            f"a block has {PAGE_TOKENS} whole numbers as tokens, found {ids.dtype} {ids.shape}"
        )
    if ids.min() < -(2**31) or ids.max() >= 2**31:
        raise ValueError(f"tokens are int32, found {ids.min()} to {ids.max()}")
    return ids.astype("<i4").tobytes()
