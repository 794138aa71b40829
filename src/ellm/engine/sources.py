"""The sources of guesses that an engine has, by what was asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ellm.config.speculation import SpeculationConfig
from ellm.engine.chains import Chains
from ellm.engine.opening import OpenedModel
from ellm.errors import ConfigError
from ellm.native import SuffixIndex
from ellm.program.exit_store import ShallowExit, find_exit
from ellm.program.exits import ExitExecutor
from ellm.speculative.draft_model import DraftModel
from ellm.speculative.shallow import ShallowModel
from ellm.speculative.source import Drafter
from ellm.speculative.suffix import SuffixChances, SuffixDrafter

# A step over a few rows more costs little everywhere, over many only where there are many cores.
# Source: shared/research/proto_draft.md, section 6.
FEW_THREADS = 8
CHAIN_OF_FEW_THREADS = 5
CHAIN_OF_MANY_THREADS = 16


def find_shallow(config: SpeculationConfig, opened: OpenedModel) -> ShallowExit | None:
    """Return the exit that a model's first layers guess through, if it was asked for and is there.

    "auto" takes only one that pays.

    Raises:
        ConfigError: "shallow" was asked for and the model has none.
    """
    if config.mode not in ("auto", "shallow"):
        return None
    program = opened.program
    found = find_exit(
        opened.file.fingerprint, num_layers=program.num_layers, hidden_size=program.hidden_size
    )
    if found is None and config.mode == "shallow":
        raise ConfigError(
            "speculation is 'shallow', and no exit was fitted for this model: "
            "`ellm calibrate MODEL --shallow` does, and says whether it pays"
        )
    return found if found is not None and (found.pays or config.mode == "shallow") else None


def make_chains(
    config: SpeculationConfig,
    executor: ExitExecutor,
    *,
    draft_model: DraftModel | None,
    shallow: ShallowExit | None,
    threads: int,
) -> Chains:
    """Return what guesses for an engine over `executor`."""
    makers: list[Callable[[], Drafter]] = []
    if config.mode in ("auto", "suffix"):
        chances = SuffixChances()
        makers.append(lambda: SuffixDrafter(SuffixIndex(), chances))
    if config.mode in ("auto", "draft_model") and draft_model is not None:
        makers.append(draft_model.open)
    if shallow is not None:
        makers.append(_shallow_model(executor, shallow).open)
    most = config.chain_length
    if most is None:
        most = CHAIN_OF_FEW_THREADS if threads <= FEW_THREADS else CHAIN_OF_MANY_THREADS
    return Chains(makers, most=most if makers else 0, draft_model=draft_model)


def _shallow_model(executor: ExitExecutor, found: ShallowExit) -> ShallowModel:
    executor.add_exit(found.layer, found.weight.astype(np.float32), found.bias)
    figures = next(depth for depth in found.figures.depths if depth.layer == found.layer)
    return ShallowModel(
        executor,
        layer=found.layer,
        acceptance=figures.acceptance,
        seconds=figures.exit_seconds,
    )
