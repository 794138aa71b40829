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

_STEP_BITS = 19  # a sixteenth of an octave of a float32


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
        out[some], skipped = _attend(exact, estimated, own_scores, values, own, read)
        counted = [stored, read.sum(), read.sum() > USUAL_BLOCKS + SINK_BLOCKS + WINDOW_BLOCKS]
        choices.counts[row] += [*counted, skipped.sum(), group]
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
            return _scores(q, four_bit_keys(keys))
        case Estimate.MEAN:
            return _scores(q, np.broadcast_to(keys.mean(axis=1, keepdims=True), keys.shape))


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
) -> tuple[Floats, Floats]:
    """Return attention (heads, D) and the share that was skipped per head."""
    stored = len(read)
    seen = np.concatenate([exact[:, :stored][:, read].reshape(len(exact), -1), own_scores], axis=1)
    largest = np.maximum(seen.max(axis=1), estimated.max(axis=(1, 2), initial=-np.inf))[:, None]
    weights = np.exp(seen - largest)
    tokens = np.concatenate(
        [values[:stored][read].reshape(-1, values.shape[-1]), values[stored, :own]]
    )
    total = weights.sum(axis=1)
    out = weights @ tokens
    rest = np.exp(estimated - largest[..., None]).sum(axis=2)
    if not read.all():
        found = np.exp(exact[:, :stored][:, read] - largest[..., None]).sum(axis=(1, 2))
        factor = np.clip(found / rest[:, read].sum(axis=1), 0.25, 4)
        skipped = rest[:, ~read] * factor[:, None]
        out += skipped @ values[:stored][~read].mean(axis=1)
        total = total + skipped.sum(axis=1)
    everything = rest.sum(axis=1) + weights[:, weights.shape[1] - own :].sum(axis=1)
    return out / total[:, None], rest[:, ~read].sum(axis=1) / everything
