"""What a calibration goes through, made and checked before a model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ellm.cli import backend
from ellm.cli.calibrate_options import CalibrateOptions
from ellm.cli.console import Console
from ellm.cli.quality_inputs import require_memory, texts_of
from ellm.errors import ConfigError, RequestError
from ellm.units import count_of, format_count

if TYPE_CHECKING:
    from ellm.calibration.parts import Kept, PartFiles
    from ellm.calibration.plan import CalibrationPlan
    from ellm.calibration.run import CalibratedModel
    from ellm.calibration.texts import CalibrationTexts
    from ellm.engine.opening import OpenedModel
    from ellm.sparse.profile import SparseProfile


@dataclass(frozen=True, slots=True)
class Target:
    """A model whose profile is made, shown or deleted.

    Attributes:
        path: Its file.
        opened: All of it but the weights.
        described: What a calibration must know of it.
    """

    path: Path
    opened: OpenedModel
    described: CalibratedModel

    def find_profile(self) -> SparseProfile | None:
        """Return the profile that an earlier calibration made, if there is one."""
        from ellm.sparse.profile import find_profile

        shape = self.described.shape
        return find_profile(
            self.described.fingerprint,
            num_layers=shape.num_layers,
            num_kv_heads=shape.num_kv_heads,
            num_heads=shape.num_heads,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationInputs:
    """Everything that a run needs besides a loaded model.

    Attributes:
        plan: What to run.
        texts: What to learn from and to check on.
        parts: Where finished texts are kept.
        kept: What they have of an earlier run.
    """

    plan: CalibrationPlan
    texts: CalibrationTexts
    parts: PartFiles
    kept: Kept

    @property
    def num_texts(self) -> int:
        """Texts in all."""
        return len(self.texts.learning) + len(self.texts.held_out)


def find_target(console: Console, options: CalibrateOptions) -> Target:
    """Find and open the model."""
    from ellm.calibration.run import CalibratedModel
    from ellm.calibration.shape import Shape

    path = backend.find_model(options.model, console)
    opened = backend.open_header(path)
    described = CalibratedModel(
        fingerprint=opened.file.fingerprint,
        shape=Shape.of(opened.program),
        context_length=opened.config.context_length,
    )
    return Target(path, opened, described)


def forget_file(console: Console, path: Path, *, absent: str) -> None:
    """Delete what an earlier run found, and tell; `absent` is told where there is nothing.

    Raises:
        ConfigError: It cannot be deleted.
    """
    try:
        path.unlink()
    except FileNotFoundError:
        console.note(absent)
    except OSError as error:
        raise ConfigError(f"cannot delete {path}: {error.strerror or error}") from error
    else:
        console.note(f"{path} is deleted")


def prepare_inputs(
    console: Console, options: CalibrateOptions, target: Target
) -> CalibrationInputs:
    """Cut the texts, and find what an earlier run has left.

    Raises:
        ConfigError: The length is more than the model's context, a text cannot be read, or the
            cache cannot be written to.
        RequestError: No layer of the model reads the whole context.
        CapacityError: What must be kept of the exact predictions does not fit in memory.
    """
    from ellm.calibration.parts import PartFiles
    from ellm.calibration.texts import calibration_texts

    model, tokenizer = target.described, target.opened.tokenizer
    if not model.shape.choosing_heads:
        raise RequestError(
            "every layer of this model has a sliding window: there is nothing to choose from, and "
            "nothing to calibrate"
        )
    texts = texts_of(options.text)
    plan = options.plan(model.context_length)
    # Prose is the last of those that are on every machine, and steps are timed on the last: it has
    # most read of it, so that the depth from which reading less pays is not promised too low.
    cut = calibration_texts(tokenizer, texts if options.text else texts[::-1], plan)
    passages = (*cut.learning, *cut.held_out)
    require_memory(passages, tokenizer.vocab_size, separate=False, advice="give a shorter --tail")
    for note in cut.notes:
        console.warn(note)
    parts = PartFiles(model.fingerprint, plan, model.shape, cut)
    if options.fresh:
        parts.delete()
    parts.require_writable()
    kept, unusable = parts.load()
    if unusable is not None:
        console.warn(unusable)
        parts.delete()
    inputs = CalibrationInputs(plan=plan, texts=cut, parts=parts, kept=kept)
    console.note(_announcement(inputs))
    return inputs


def _announcement(inputs: CalibrationInputs) -> str:
    texts, plan = inputs.texts, inputs.plan
    going_on = ""
    if inputs.kept.num_texts:
        done = format_count(inputs.kept.num_texts)
        going_on = f"; {done} of {format_count(inputs.num_texts)} are finished, going on from there"
    return (
        f"learning from {count_of(len(texts.learning), 'text')}, checking on "
        f"{format_count(len(texts.held_out))} others at {format_count(plan.length_tokens)} tokens"
        f"{going_on}"
    )
