"""The texts of a calibration: what it learns from, and what it is checked on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ellm.calibration.plan import CalibrationPlan
from ellm.quality.fidelity import Passage, cut_passage, first_tokens, needles, too_short
from ellm.quality.interfaces import QualityTokenizer
from ellm.quality.texts import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationTexts:
    """Texts cut into a prompt and a tail.

    Attributes:
        learning: What is learnt from.
        held_out: What figures are given of: nothing of it was learnt from.
        notes: What was left out, and why.
    """

    learning: tuple[Passage, ...]
    held_out: tuple[Passage, ...]
    notes: tuple[str, ...]


def calibration_texts(
    tokenizer: QualityTokenizer, texts: Iterable[Text], plan: CalibrationPlan
) -> CalibrationTexts:
    """Return needles, and the halves of each text: the first to learn from, the other held out.

    A text whose halves are too short is learnt from as a whole, if it is long enough.

    Raises:
        ConfigError: The length has not even room for one needle.
    """
    learning = _present(needles(tokenizer, plan.length_tokens, plan.tail_tokens))
    held_out = _present(needles(tokenizer, plan.length_tokens, plan.tail_tokens, variant=1))
    notes: list[str] = []
    for text in texts:
        first, second = (_cut(tokenizer, text.name, half, plan)[0] for half in halves(text.content))
        if first is not None and second is not None:
            learning.append(first)
            held_out.append(second)
            continue
        whole, tokens = _cut(tokenizer, text.name, text.content, plan)
        if whole is None:
            notes.append(too_short(text.name, tokens, plan.length_tokens, plan.tail_tokens))
            continue
        learning.append(whole)
        notes.append(f"{text.name} is too short to be held out in part: learnt from as a whole")
    return CalibrationTexts(learning=tuple(learning), held_out=tuple(held_out), notes=tuple(notes))


def _present(passage: Passage | None) -> list[Passage]:
    return [] if passage is None else [passage]


def halves(content: str) -> tuple[str, str]:
    """Return both halves of a text, the second from the beginning of a line."""
    middle = len(content) // 2
    return content[:middle], content[content.find("\n", middle) + 1 or middle :]


def _cut(
    tokenizer: QualityTokenizer, name: str, content: str, plan: CalibrationPlan
) -> tuple[Passage | None, int]:
    """Return the passage of a text if it is long enough, and how many tokens were looked at."""
    tokens = first_tokens(tokenizer, content, plan.context_tokens + 1)
    return cut_passage(name, tokens, plan.length_tokens, plan.tail_tokens), len(tokens)
