import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ellm.kv.block_keys import chain_keys, full_blocks, root_key

SECRET = bytes(range(32))
ROOT = root_key(SECRET, fingerprint=b"model", salt=b"tenant")
TOKENS = np.random.default_rng(6).integers(0, 150_000, 64 * 5 + 63, dtype=np.int32)


def test_every_full_block_has_one_key_and_the_open_block_none():
    for tokens, keys in ((0, 0), (63, 0), (64, 1), (127, 1), (128, 2), (64 * 5 + 63, 5)):
        assert len(chain_keys(ROOT, TOKENS[:tokens])) == keys


@given(st.integers(0, 5), st.integers(0, len(TOKENS)))
def test_extending_a_chain_equals_making_it_at_once(known_blocks, tokens):
    whole = chain_keys(ROOT, TOKENS[:tokens])
    known = chain_keys(ROOT, TOKENS[: 64 * min(known_blocks, tokens // 64)])
    assert chain_keys(ROOT, TOKENS[:tokens], known) == whole
    assert whole[: len(known)] == known


@given(st.integers(0, 64 * 5 - 1), st.integers(0, 2**31 - 1))
def test_a_key_depends_on_every_token_up_to_its_blocks_end_and_on_no_later_one(position, token):
    changed = TOKENS.copy()
    changed[position] = token
    same = [
        a == b for a, b in zip(chain_keys(ROOT, TOKENS), chain_keys(ROOT, changed), strict=True)
    ]
    unchanged = 5 if token == TOKENS[position] else position // 64
    assert same == [True] * unchanged + [False] * (5 - unchanged)


def test_equal_blocks_at_different_places_have_different_keys():
    keys = chain_keys(ROOT, [7] * 64 * 4)
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    "other",
    [
        root_key(bytes(32), fingerprint=b"model", salt=b"tenant"),
        root_key(SECRET, fingerprint=b"model2", salt=b"tenant"),
        root_key(SECRET, fingerprint=b"model", salt=b"tenant2"),
        root_key(SECRET, fingerprint=b"modelt", salt=b"enant"),
    ],
    ids=["secret", "fingerprint", "salt", "moved border"],
)
def test_another_secret_fingerprint_or_salt_shares_no_key(other):
    assert len(other) == 32
    assert not set(chain_keys(ROOT, TOKENS)) & set(chain_keys(other, TOKENS))


def test_keys_are_what_the_format_says():
    # Spelled out once more: keys outlive the process in the disk tier.
    hashed = hashlib.blake2b(key=SECRET, digest_size=32, person=b"eLLM kv root 1")
    hashed.update(b"\x05\0\0\0\0\0\0\0modeltenant")
    root = hashed.digest()
    expected, key = [], b""
    for start in range(0, 64 * 5, 64):
        content = b"".join(int(t).to_bytes(4, "little") for t in TOKENS[start : start + 64])
        key = hashlib.blake2b(
            key + content, key=root, digest_size=32, person=b"eLLM kv block 1"
        ).digest()
        expected.append(key)
    assert root == ROOT
    assert chain_keys(ROOT, TOKENS) == expected


@pytest.mark.parametrize(
    "same",
    [
        TOKENS.tolist(),
        TOKENS.astype(np.int64),
        TOKENS.astype(">i4"),
        np.repeat(TOKENS, 2)[::2],
    ],
    ids=["list", "int64", "big endian", "strided"],
)
def test_the_form_of_the_tokens_does_not_matter(same):
    assert chain_keys(ROOT, same) == chain_keys(ROOT, TOKENS)


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1, 2**70, 0.5])
def test_ids_that_are_not_int32_are_refused(token):
    with pytest.raises(ValueError, match="token ids are int32"):
        full_blocks([token] * 64)


def test_more_known_keys_than_full_blocks_are_refused():
    keys = chain_keys(ROOT, TOKENS)
    with pytest.raises(ValueError, match="2 keys were given for 1 full blocks"):
        chain_keys(ROOT, TOKENS[:127], keys[:2])


def test_a_secret_of_another_length_is_refused():
    with pytest.raises(ValueError, match="31 bytes, 32"):
        root_key(bytes(31), fingerprint=b"", salt=b"")
