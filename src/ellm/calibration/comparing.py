"""How far predictions under a rule are from the exact ones over the tail of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ellm.engine.replay import Replay
from ellm.errors import RequestError
from ellm.program.executor import ChoiceRule, Floats
from ellm.quality.divergence import compare
from ellm.quality.fidelity import FidelityCell, Passage, figures
from ellm.sparse.counts import ChoiceLog
from ellm.sparse.profile import HeldOutFigures


def feed(
    replay: Replay,
    passage: Passage,
    rule: ChoiceRule | None,
    log: ChoiceLog,
    on_token: Callable[[], None],
) -> Iterator[Floats]:
    """Feed a tail by a rule; yield the logits (V,) after each token, and log what rows chose."""
    for position, token in enumerate(passage.tail, len(passage.prompt)):
        logits, choices = replay.run(token, position, rule)
        if choices is not None:
            log.add(choices.counts, choices.rule.estimate)
        on_token()
        yield logits


def figures_under(
    replay: Replay,
    passage: Passage,
    exact: Sequence[Floats],
    rule: ChoiceRule,
    on_token: Callable[[], None],
) -> HeldOutFigures:
    """Feed a tail by a rule; return how far predictions are from the exact logits (n, V).

    Raises:
        RequestError: The rows had no blocks to choose from.
    """
    log = ChoiceLog()
    tail = feed(replay, passage, rule, log, on_token)
    comparison = compare(exact, tail, passage.following)
    cell = FidelityCell(
        text=passage.text,
        length_tokens=passage.length_tokens,
        arm=f"{rule.mass:g}",
        comparison=comparison,
        parts=passage.parts,
        blocks_read=log.totals.blocks_read,
        blocks_total=log.totals.blocks_total,
        skipped_mass=log.totals.skipped_mass,
    )
    found = figures([cell])
    if found is None or found.blocks_read_share is None:
        raise RequestError(f"{passage.text} gave no rows that choose what they read")
    return HeldOutFigures(
        text=passage.text,
        length_tokens=passage.length_tokens,
        positions=found.n,
        mean_kl=found.mean_kl,
        p99_kl=found.p99_kl,
        same_top=found.same_top,
        blocks_read_share=found.blocks_read_share,
    )
