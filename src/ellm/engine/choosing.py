"""The choice of KV blocks that a sequence's rows make, and what is kept of it."""

from __future__ import annotations

import numpy as np

from ellm.engine.scheduler import Part
from ellm.kv.block_pool import blocks_for
from ellm.program.executor import NUM_COUNTS, RowChoices
from ellm.sparse.tracing import observing


def choices_of(part: Part) -> RowChoices | None:
    """Return how the rows of `part` choose: those of an answer by its mode, a prompt's not."""
    sequence = part.sequence
    if not part.in_answer:
        return None
    rule = sequence.attention.rule_at(part.start)
    counts = np.zeros((part.count, NUM_COUNTS))
    tracer = sequence.tracer
    if tracer is not None and tracer.wants_more:
        observed = tracer.observation(part.count, blocks_for(part.start + part.count))
        return RowChoices(observing(rule), counts, observed)
    return None if rule is None else RowChoices(rule, counts)


def keep_choices(part: Part, choices: RowChoices | None, rows: int) -> None:
    """Add what the first `rows`, the committed ones, chose to their sequence's counts and trace."""
    if choices is None:
        return
    sequence = part.sequence
    # Exact rows have a rule only to be observed.
    if sequence.attention.rule_at(part.start) is not None:
        sequence.choices.add(choices.counts[:rows], choices.rule.estimate)
    if sequence.tracer is not None and choices.observed is not None:
        sequence.tracer.keep(choices.observed, part.start, rows)
