"""Whether and how answers are sped up by chains, checked once when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from ellm.config.bounds import check_integer, refuse

SPECULATION_MODES = ("off", "auto", "suffix", "draft_model", "shallow")
MAX_CHAIN_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """Where guesses come from; answers are the same with any of them.

    Attributes:
        mode: "off" commits one token per step; "suffix" copies from the prompt and the answer so
            far; "draft_model" asks a smaller model of the same vocabulary, too; "shallow" the
            first layers of the model itself; "auto" uses whatever of them is there and pays.
        draft_model: Path or name of the smaller model; None is none.
        chain_length: Most guessed tokens per step; None is chosen from the number of threads.

    Raises:
        ConfigError: A value cannot work; the message names field, value and what is allowed.
    """

    mode: str = "auto"
    draft_model: str | None = None
    chain_length: int | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        if self.mode not in SPECULATION_MODES:
            refuse("speculation", self.mode, " or ".join(map(repr, SPECULATION_MODES)))
        if self.draft_model is not None:
            if not isinstance(self.draft_model, str) or not self.draft_model:
                refuse("draft_model", self.draft_model, "a path or the name of a model")
            if self.mode not in ("auto", "draft_model"):
                refuse("draft_model", self.draft_model, f"none with speculation {self.mode!r}")
        elif self.mode == "draft_model":
            refuse("draft_model", None, "a model, with speculation 'draft_model'")
        if self.chain_length is not None:
            check_integer("chain_length", self.chain_length, minimum=1, maximum=MAX_CHAIN_TOKENS)


NO_SPECULATION = SpeculationConfig(mode="off")
