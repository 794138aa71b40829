"""Attention over chosen KV blocks in NumPy: the twin of native/ops/chosen_attention.cc.

Keys and values are floats here, where the native core has int8: the estimate from four bits rounds
keys as int8 blocks store them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ellm.program.executor import BLOCK_TOKENS, ChoiceRule, Estimate, RowChoices

Floats = NDArray[np.float32]

SINK_BLOCKS = 1
WINDOW_BLOCKS = 8
MIN_CHOSEN_BLOCKS = 4
USUAL_BLOCKS = 64

_MAX_QUERIES = 8  # of a native call
_MISSED_ENERGY = 0.1
_STEP_BITS = 19  # a sixteenth of an octave of a float32
_LOWEST_STEP = (127 - 32) << (23 - _STEP_BITS)  # smaller shares are all one


def attend_row(
    q: Floats, k: Floats, v: Floats, *, end: int, choices: RowChoices, row: int, layer: int
) -> Floats:
    """Return attention (Hq, D) of one row, and add to `choices` what it chose.

    Args:
        q: Scaled queries (Hq, D).
        k: Keys (B, 64, Hkv, D), the row's own block last.
        v: Values, as k.
        end: Tokens that the row sees.
        choices: Its rule, counts and arrays to observe.
        row: Index of the row in those.
        layer: Index of the layer in those.
    """
    heads, kv_heads = q.shape[0], k.shape[2]
    group = heads // kv_heads
    stored = len(k) - 1
    out = np.empty_like(q)
    for kv_head in range(kv_heads):
        some = slice(kv_head * group, (kv_head + 1) * group)
        keys, values = k[:, :, kv_head], v[:, :, kv_head]
        own = end - stored * BLOCK_TOKENS
        exact = _scores(q[some], keys)
        estimated = _estimated(choices.rule.estimate, q[some], keys[:stored], exact[:, :stored])
        own_scores = exact[:, stored, :own]
        masses = _log_sum_exp(estimated)
        shares = _shares(masses, _log_sum_exp(own_scores[:, None]))
        read = chosen_blocks(choices.rule, shares)
        out[some] = _attend(exact, estimated, own_scores, values, own, read)
        counted = [stored, read.sum(), read.sum() > USUAL_BLOCKS + SINK_BLOCKS + WINDOW_BLOCKS]
        choices.counts[row] += [*counted, shares[:, ~read].sum(), group]
        if choices.observed is not None and choices.observed.shares is not None:
            seen = shares.max(axis=0)
            choices.observed.shares[row, layer, kv_head, :stored] = np.where(read, seen, -seen)
    return out


def chosen_blocks(rule: ChoiceRule, shares: Floats) -> NDArray[np.bool_]:
    """Return which of B blocks are read, given the shares (heads, B) of what they hold.

    Blocks are skipped from the smallest on, by steps of a sixteenth of an octave, while every head
    keeps `rule.mass`; the first block and the last 8 are always read, and at least 4 more.
    """
    blocks = shares.shape[1]
    read = np.ones(blocks, dtype=np.bool_)
    candidates = np.arange(SINK_BLOCKS, blocks - WINDOW_BLOCKS)
    most = candidates.size if rule.max_blocks is None else min(rule.max_blocks, candidates.size)
    if candidates.size <= MIN_CHOSEN_BLOCKS or (rule.mass >= 1 and most == candidates.size):
        return read
    steps = shares.max(axis=0)[candidates].view(np.uint32) >> _STEP_BITS
    steps = np.maximum(steps, _LOWEST_STEP)
    ordered = candidates[np.argsort(steps, kind="stable")]
    skipped = np.zeros(len(shares), dtype=np.float32)
    for count, block in enumerate(ordered[: candidates.size - min(MIN_CHOSEN_BLOCKS, most)]):
        covered = rule.mass < 1 and bool(((skipped + shares[:, block]) <= 1 - rule.mass).all())
        if not covered and count >= candidates.size - most:
            break
        skipped += shares[:, block]
        read[block] = False
    return read


def four_bit_keys(keys: Floats) -> Floats:
    """Return keys (B, 64, D) as the upper four bits of their int8 codes say: the middle of 16."""
    mean = keys.mean(axis=1, keepdims=True)
    scale = np.abs(keys - mean).max(axis=1, keepdims=True) / np.float32(127)
    codes = np.rint(np.divide(keys - mean, scale, out=np.zeros_like(keys), where=scale > 0)) + 128
    middle = np.floor(codes / 16) * 16 + np.float32(7.5) - 128
    return np.asarray(mean + middle * scale, dtype=np.float32)


def _estimated(estimate: Estimate, q: Floats, keys: Floats, exact: Floats) -> Floats:
    """Return scores (heads, B, 64) as the estimate sees them."""
    match estimate:
        case Estimate.EXACT:
            return exact
        case Estimate.SCAN:
            parts = [q[i : i + _MAX_QUERIES] for i in range(0, len(q), _MAX_QUERIES)]
            return np.concatenate([_scan(part, keys) for part in parts])
        case Estimate.MEAN:
            return _scores(q, np.broadcast_to(keys.mean(axis=1, keepdims=True), keys.shape))


def strong_elements(q: Floats, keys: Floats) -> NDArray[np.bool_]:
    """Return which elements (D,) a scan reads, given queries (heads, D) and a block (64, D).

    Whole octets, those in which the queries have most of their squares by the spread of the keys:
    as many as have 90 % of it, and at least three of eight.
    """
    spread = np.abs(keys - keys.mean(axis=0)).max(axis=0)
    squares = np.zeros((len(q), -(-q.shape[1] // 16) * 16))
    squares[:, : q.shape[1]] = (q * spread) ** 2
    total = squares.sum(axis=1, keepdims=True)
    shares = np.divide(squares, total, out=np.zeros_like(squares), where=total > 0)
    strength = shares.sum(axis=0).reshape(-1, 8).sum(axis=1)
    order = np.argsort(-strength, kind="stable")
    # What is left before the n-th octet is taken.
    left = strength.sum() - np.cumsum(strength[order]) + strength[order]
    wanted = (left > _MISSED_ENERGY * strength.sum()) | (np.arange(len(order)) * 8 < len(order) * 3)
    read = np.zeros(len(order), dtype=np.bool_)
    read[order[wanted]] = True
    return np.repeat(read, 8)[: q.shape[1]]


def _scan(q: Floats, keys: Floats) -> Floats:
    if not len(keys):
        return np.empty((len(q), 0, BLOCK_TOKENS), dtype=np.float32)
    mean = keys.mean(axis=1, keepdims=True)
    seen = np.where(strong_elements(q, keys[-1]), four_bit_keys(keys), mean)
    return _scores(q, np.asarray(seen, dtype=np.float32))


def _scores(q: Floats, keys: Floats) -> Floats:
    """Return scores (heads, B, 64) of q (heads, D) with keys (B, 64, D)."""
    return np.asarray(np.einsum("hd,btd->hbt", q, keys), dtype=np.float32)


def _log_sum_exp(scores: Floats) -> Floats:
    """Return (heads, B) of scores (heads, B, tokens)."""
    largest = scores.max(axis=-1)
    total = np.exp(scores - largest[..., None]).sum(axis=-1)
    return np.asarray(largest + np.log(total), dtype=np.float32)


def _shares(masses: Floats, own: Floats) -> Floats:
    """Return the shares (heads, B) of masses (heads, B), with one more mass (heads, 1) beside."""
    both = np.concatenate([masses, own], axis=1)
    weights = np.exp(both - both.max(axis=1, keepdims=True))
    return np.asarray((weights / weights.sum(axis=1, keepdims=True))[:, :-1], dtype=np.float32)


def _attend(
    exact: Floats,
    estimated: Floats,
    own_scores: Floats,
    values: Floats,
    own: int,
    read: NDArray[np.bool_],
) -> Floats:
    """Return attention (heads, D)."""
    stored = len(read)
    seen = np.concatenate([exact[:, :stored][:, read].reshape(len(exact), -1), own_scores], axis=1)
    largest = np.maximum(seen.max(axis=1), estimated.max(axis=(1, 2), initial=-np.inf))[:, None]
    weights = np.exp(seen - largest)
    tokens = np.concatenate(
        [values[:stored][read].reshape(-1, values.shape[-1]), values[stored, :own]]
    )
    skipped = np.exp(estimated - largest[..., None]).sum(axis=2)[:, ~read]
    out = weights @ tokens + skipped @ values[:stored][~read].mean(axis=1)
    total = weights.sum(axis=1) + skipped.sum(axis=1)
    return np.asarray(out / total[:, None], dtype=np.float32)
