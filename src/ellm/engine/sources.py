"""The sources of guesses that an engine has, by what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ellm.config.engine import EngineConfig
from ellm.config.speculation import SpeculationConfig
from ellm.engine.chains import Chains
from ellm.engine.draft import DraftPlan, plan_draft
from ellm.engine.opening import OpenedModel, open_model
from ellm.engine.parts import LoadProgress
from ellm.errors import ConfigError
from ellm.native import SuffixIndex
from ellm.program.exit_store import ShallowExit, find_exit
from ellm.program.native_executor import NativeExecutor
from ellm.speculative.shallow import ShallowModel
from ellm.speculative.source import Drafter
from ellm.speculative.suffix import SuffixChances, SuffixDrafter

# A step over a few rows more costs little everywhere, over many only where there are many cores.
# Source: shared/research/proto_draft.md, section 6.
FEW_THREADS = 8
CHAIN_OF_FEW_THREADS = 5
CHAIN_OF_MANY_THREADS = 16


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """The sources of a model that is to be loaded.

    Attributes:
        config: What was asked for.
        draft: A small model, if one was given.
        shallow: The exit that the model's first layers guess through, if there is one to use.
    """

    config: SpeculationConfig
    draft: DraftPlan | None
    shallow: ShallowExit | None

    @property
    def draft_bytes(self) -> int:
        """What the small model will take."""
        return 0 if self.draft is None else self.draft.memory.total_bytes

    @property
    def num_exits(self) -> int:
        """Exits that the model's executor will have."""
        return 0 if self.shallow is None else 1

    def load(
        self, executor: NativeExecutor, *, mapped: bool, progress: LoadProgress | None
    ) -> Chains:
        """Return what guesses for an engine over `executor`.

        Raises:
            EllmError: See `LLM`.
        """
        makers: list[Callable[[], Drafter]] = []
        if self.config.mode in ("auto", "suffix"):
            chances = SuffixChances()
            makers.append(lambda: SuffixDrafter(SuffixIndex(), chances))
        draft_model = None
        if self.draft is not None:
            draft_model = self.draft.load(mapped=mapped, progress=progress)
            makers.append(draft_model.open)
        if self.shallow is not None:
            makers.append(_shallow_model(executor, self.shallow).open)
        most = self.config.chain_length
        if most is None:
            few = executor.threads <= FEW_THREADS
            most = CHAIN_OF_FEW_THREADS if few else CHAIN_OF_MANY_THREADS
        return Chains(makers, most=most if makers else 0, draft_model=draft_model)


def plan_sources(
    opened: OpenedModel, options: EngineConfig, cpus: Sequence[int], progress: LoadProgress | None
) -> SourcePlan:
    """Return the sources that `options` ask for, checked and counted.

    Raises:
        ConfigError: A source cannot work with this model.
        EllmError: The draft model cannot be opened; see `LLM`.
    """
    config = options.speculation
    draft = None
    if config.draft_model is not None:
        small = open_model(config.draft_model, progress)
        draft = plan_draft(small, opened, cpus=cpus, kv_type=options.kv_type)
    return SourcePlan(config, draft, _find_shallow(config, opened))


def _find_shallow(config: SpeculationConfig, opened: OpenedModel) -> ShallowExit | None:
    """Return the exit to guess through; "auto" takes only one that pays."""
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


def _shallow_model(executor: NativeExecutor, found: ShallowExit) -> ShallowModel:
    executor.add_exit(found.layer, found.weight.astype(np.float32), found.bias)
    figures = next(depth for depth in found.figures.depths if depth.layer == found.layer)
    return ShallowModel(
        executor,
        layer=found.layer,
        acceptance=figures.acceptance,
        seconds=figures.exit_seconds,
    )
