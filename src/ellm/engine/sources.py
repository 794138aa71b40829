"""The sources of guesses that an engine has, by what was asked for."""

from __future__ import annotations

from collections.abc import Callable

from ellm.config.speculation import SpeculationConfig
from ellm.engine.chains import Chains
from ellm.native import SuffixIndex
from ellm.speculative.draft_model import DraftModel
from ellm.speculative.source import Drafter
from ellm.speculative.suffix import SuffixChances, SuffixDrafter

# A step over a few rows more costs little everywhere, over many only where there are many cores.
# Source: shared/research/proto_draft.md, section 6.
FEW_THREADS = 8
CHAIN_OF_FEW_THREADS = 5
CHAIN_OF_MANY_THREADS = 16


def make_chains(
    config: SpeculationConfig, draft_model: DraftModel | None, *, threads: int
) -> Chains:
    """Return what guesses for an engine."""
    makers: list[Callable[[], Drafter]] = []
    if config.mode in ("auto", "suffix"):
        chances = SuffixChances()
        makers.append(lambda: SuffixDrafter(SuffixIndex(), chances))
    if config.mode in ("auto", "draft_model") and draft_model is not None:
        makers.append(draft_model.open)
    most = config.chain_length
    if most is None:
        most = CHAIN_OF_FEW_THREADS if threads <= FEW_THREADS else CHAIN_OF_MANY_THREADS
    return Chains(makers, most=most if makers else 0, draft_model=draft_model)
