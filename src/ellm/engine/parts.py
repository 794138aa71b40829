"""What an engine is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ellm.config.model import ModelConfig
from ellm.engine.chains import Chains
from ellm.engine.prefixes import PrefixConfig
from ellm.engine.stats import ModelFacts
from ellm.program.executor import Executor
from ellm.sparse.profile import SparseProfile
from ellm.tokenizers.tokenizer import Tokenizer

LoadProgress = Callable[[int, int], None]
"""Called with bytes done and bytes in total."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that can answer.

    Attributes:
        executor: Runs the program over its KV blocks.
        tokenizer: Text to tokens and back.
        config: The model's hyper-parameters.
        context_tokens: Tokens of prompt and answer that fit.
        facts: For statistics.
        profile: What calibration found about its attention, if it was calibrated.
        chains: What guesses, if anything does.
        reuse: How blocks are shared and kept, if they are.
    """

    executor: Executor
    tokenizer: Tokenizer
    config: ModelConfig
    context_tokens: int
    facts: ModelFacts
    profile: SparseProfile | None = None
    chains: Chains | None = None
    reuse: PrefixConfig | None = None
