"""Names of full KV blocks: a keyed hash chain over the tokens up to and including each block."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ellm.kv.installation_secret import SECRET_BYTES
from ellm.program.executor import BLOCK_TOKENS

KEY_BYTES = 32

Tokens = Sequence[int] | npt.NDArray[np.int32]

# blake2b's personalisation: a root can never be the key of a block.
_ROOT = b"eLLM kv root 1"
_BLOCK = b"eLLM kv block 1"
_INT32 = np.iinfo(np.int32)
_BLOCK_BYTES = BLOCK_TOKENS * np.dtype(np.int32).itemsize


def root_key(secret: bytes, *, fingerprint: bytes, salt: bytes) -> bytes:
    """Return the 32 bytes under which the keys of one model and tenant are made; never stored.

    Args:
        secret: The installation's 32 bytes, or random ones where nothing outlives the process.
        fingerprint: Names all that the bits of a block depend on besides the tokens: model file,
            KV type, RoPE settings, version of the format.
        salt: Of the tenant: equal texts of two tenants have nothing in common.

    Raises:
        ValueError: The secret is not 32 bytes.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"the secret has {len(secret)} bytes, {SECRET_BYTES} are expected")
    hashed = hashlib.blake2b(key=secret, digest_size=KEY_BYTES, person=_ROOT)
    # With its length in front, the end of one cannot be taken for the beginning of the other.
    hashed.update(len(fingerprint).to_bytes(8, "little") + fingerprint + salt)
    return hashed.digest()


def chain_keys(root: bytes, tokens: Tokens, already: Sequence[bytes] = ()) -> list[bytes]:
    """Return the keys of all full blocks of `tokens`, 32 bytes each; an open block has none.

    A key is blake2b(key before, 64 tokens), keyed by the root: equal keys mean equal tokens from
    the first on. Chosen over the key before as blake2b's key, with which whoever reads the keys in
    an index could test guesses of what follows.

    Args:
        root: From `root_key`.
        tokens: Token ids from position 0 on.
        already: Keys of the first blocks, from an earlier call; only later ones are computed.

    Raises:
        ValueError: `already` has more keys than there are full blocks, or an id is not int32.

    Source: RFC 7693 (keyed BLAKE2b). A hash chain over blocks: vLLM, automatic prefix caching.
    """
    full = len(tokens) // BLOCK_TOKENS
    if len(already) > full:
        raise ValueError(f"{len(already)} keys were given for {full} full blocks")
    keys = list(already)
    key = keys[-1] if keys else b""
    for content in full_blocks(tokens[BLOCK_TOKENS * len(keys) :]):
        hashed = hashlib.blake2b(key, key=root, digest_size=KEY_BYTES, person=_BLOCK)
        hashed.update(content)
        key = hashed.digest()
        keys.append(key)
    return keys


def full_blocks(tokens: Tokens) -> list[bytes]:
    """Return each full block of `tokens` as it is hashed and compared: 64 int32, little endian.

    Raises:
        ValueError: An id is not int32.
    """
    ids = np.asarray(tokens[: len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS])
    if ids.size and (
        ids.dtype.kind not in "iu" or ids.min() < _INT32.min or ids.max() > _INT32.max
    ):
        raise ValueError(f"token ids are int32, found {ids.dtype} from {ids.min()} to {ids.max()}")
    data = ids.astype("<i4").tobytes()
    return [data[begin : begin + _BLOCK_BYTES] for begin in range(0, len(data), _BLOCK_BYTES)]
