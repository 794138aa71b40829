"""Rows that choose their KV blocks: run them, and see what they chose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ellm.program.executor import (
    ChoiceRule,
    Executor,
    Floats,
    Logits,
    Observation,
    RowChoices,
    SequenceRows,
    Tokens,
)
from ellm.program.ops import Attention, Program

TOTAL, READ, WIDENED, SKIPPED, HEADS = range(5)  # columns of RowChoices.counts


@dataclass(frozen=True)
class Tail:
    """Rows that were run: logits (n, V), counts (n, 5), what was observed."""

    logits: Logits
    counts: NDArray[np.float64]
    observed: Observation


def choices(rule: ChoiceRule, rows: int, observed: Observation | None = None) -> RowChoices:
    """Return choices of `rows` rows with empty counts."""
    return RowChoices(rule, np.zeros((rows, 5)), observed)


def observation(program: Program, rows: int, blocks: int) -> Observation:
    """Return every array there is to observe, filled with NaN: what is left alone is seen."""
    heads = next(op.num_heads for op in program.ops if isinstance(op, Attention))

    def array(num_heads: int) -> Floats:
        return np.full((rows, program.num_layers, num_heads, blocks), np.nan, dtype=np.float32)

    return Observation(
        shares=array(program.num_kv_heads), exact=array(heads), scan=array(heads), mean=array(heads)
    )


def run_tail(
    executor: Executor,
    tokens: Tokens,
    start: int,
    rule: ChoiceRule | None,
    *,
    rows_per_step: int | None = None,
    blocks: NDArray[np.int32] | None = None,
    observed: Observation | None = None,
) -> Tail:
    """Run `tokens` from position `start` on; `observed` has the rows of each step.

    Args:
        executor: With the tokens before `start` in its blocks.
        tokens: (n,) int32.
        start: Position of the first.
        rule: How the rows choose; None reads everything, and leaves counts of zero.
        rows_per_step: Rows of a step; None is all of them.
        blocks: Of the sequence; None is all that there are, in order.
        observed: What else is wanted.
    """
    if blocks is None:
        blocks = np.arange(executor.num_blocks, dtype=np.int32)
    counts = np.zeros((tokens.size, 5))
    logits = []
    step_rows = rows_per_step or tokens.size
    for first in range(0, tokens.size, step_rows):
        part = tokens[first : first + step_rows]
        chosen = None
        if rule is not None:
            chosen = RowChoices(rule, counts[first : first + part.size], observed)
        rows = [SequenceRows(blocks, start + first, part.size, chosen)]
        logits.append(executor.step(part, rows, np.arange(part.size, dtype=np.int32)))
    return Tail(np.concatenate(logits), counts, observed or Observation())


def blocks_read(shares: Floats) -> NDArray[np.bool_]:
    """Return which blocks `Observation.shares` says were read; a share of -0 was not."""
    return ~np.signbit(shares)
