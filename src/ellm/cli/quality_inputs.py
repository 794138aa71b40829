"""What a measurement of quality goes through, made and checked before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ellm.cli import backend
from ellm.cli.bench_tokens import read_text
from ellm.cli.console import Console
from ellm.cli.quality_options import QualityOptions
from ellm.errors import CapacityError
from ellm.units import count_of, format_bytes, format_count

if TYPE_CHECKING:
    from ellm.config.engine import EngineConfig
    from ellm.quality.fidelity import Passage
    from ellm.quality.plan import QualityPlan
    from ellm.quality.run import Phase
    from ellm.quality.tasks.haystack import Haystack
    from ellm.quality.texts import Text

# Of the memory there is, for logits that are kept: the rest is for a model.
_MOST_KEPT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Side:
    """A model and how it is loaded.

    Attributes:
        path: Its file.
        model: What is known of it.
        config: How to load it.
    """

    path: Path
    model: backend.ModelText
    config: EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityInputs:
    """Everything that a run needs besides a loaded model.

    Attributes:
        reference: The reference.
        candidate: The same, or what is loaded after it.
        plan: What to measure.
        texts: Names of the texts.
        haystacks: The texts as lines.
        passages: The texts cut to their lengths.
        phases: Who answers, one model after the other.
        notes: What was left out, and why.
    """

    reference: Side
    candidate: Side
    plan: QualityPlan
    texts: tuple[str, ...]
    haystacks: tuple[Haystack, ...]
    passages: tuple[Passage, ...]
    phases: tuple[Phase, ...]
    notes: tuple[str, ...]

    def side_of(self, phase: Phase) -> Side:
        """Return the model of a phase."""
        return self.reference if phase.reference else self.candidate


def prepare_inputs(console: Console, options: QualityOptions) -> QualityInputs:
    """Find and open the models, and cut the texts.

    Raises:
        ConfigError: Lengths are more than the models' context, or too short for a task.
        RequestError: The models have different vocabularies.
        CapacityError: What must be kept of the reference does not fit in memory.
    """
    from ellm.quality.fidelity import passages
    from ellm.quality.items import check_lengths
    from ellm.quality.run import phases
    from ellm.quality.tasks.haystack import Haystack

    texts = texts_of(options.text)
    (path, model), (candidate_path, candidate) = _open(console, options)
    plan = options.plan(min(model.context_length, candidate.context_length))
    haystacks = tuple(Haystack.from_text(text.name, text.content) for text in texts)
    check_lengths(plan, haystacks, model.tokenizer)
    found, notes = passages(model.tokenizer, texts, plan) if plan.fidelity else ([], [])
    require_memory(
        found,
        model.tokenizer.vocab_size,
        separate=options.separate,
        advice="give a shorter --tail or fewer --lengths, or leave them out with --no-fidelity",
    )
    for note in notes:
        console.warn(note)
    console.note(_announcement(plan, len(found)))
    reference_config = options.engine_config(plan, options.kv_type_of_reference)
    return QualityInputs(
        reference=Side(path, model, reference_config),
        candidate=Side(candidate_path, candidate, options.engine_config(plan, options.kv_type)),
        plan=plan,
        texts=tuple(text.name for text in texts),
        haystacks=haystacks,
        passages=tuple(found),
        phases=phases(plan.candidates, separate=options.separate),
        notes=tuple(notes),
    )


def texts_of(paths: list[Path]) -> list[Text]:
    """Return the texts of files, or those that are on every machine if there are no files.

    Raises:
        ConfigError: A file cannot be read, is too large or is no text.
    """
    from ellm.quality.texts import Text, default_haystacks

    if not paths:
        return default_haystacks()
    return [Text(str(path), read_text(path)) for path in dict.fromkeys(paths)]


def _open(
    console: Console, options: QualityOptions
) -> tuple[tuple[Path, backend.ModelText], tuple[Path, backend.ModelText]]:
    """Return path and text of the reference and of the candidates."""
    from ellm.quality.prompts import require_same_tokens

    path = backend.find_model(options.model, console)
    model = backend.open_text(path)
    if options.candidate_model is None:
        return (path, model), (path, model)
    candidate_path = backend.find_model(options.candidate_model, console)
    candidate = backend.open_text(candidate_path)
    require_same_tokens(model.tokenizer, candidate.tokenizer)
    return (path, model), (candidate_path, candidate)


def require_memory(
    passages: Sequence[Passage], vocab_size: int, *, separate: bool, advice: str
) -> None:
    """Check that the reference's predictions have room.

    Raises:
        CapacityError: They have not; the message ends with the advice.
    """
    from ellm.hardware.memory import available_memory_bytes
    from ellm.quality.run import kept_bytes

    needed = kept_bytes(passages, vocab_size, separate=separate)
    available = int(available_memory_bytes() * _MOST_KEPT_SHARE)
    if needed > available:
        raise CapacityError(
            f"the reference's predictions take {format_bytes(needed)}, "
            f"{format_bytes(available)} are available beside the model; {advice}",
            needed=needed,
            available=available,
        )


def _announcement(plan: QualityPlan, passages: int) -> str:
    items = plan.samples * len(plan.tasks) * len(plan.lengths_tokens)
    work = []
    if items:
        work.append(f"{count_of(items, 'item')} of {count_of(len(plan.tasks), 'task')}")
    if passages:
        work.append(f"predictions over {count_of(passages, 'text')}")
    lengths = ", ".join(map(format_count, plan.lengths_tokens))
    return f"measuring {' and '.join(work)} at {lengths} tokens"
