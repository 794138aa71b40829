"""What a measurement yields, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field

from ellm.quality.fidelity import FidelityCell


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnswer:
    """The answer of one arm to one item.

    Attributes:
        task: The task's name.
        length_tokens: The length that the item was made for.
        index: Its number at that length.
        arm: Who answered.
        score: Share of the expected strings that the answer has, 0..1.
        position: Where the needle is in the document, 0..1, if there is one.
        prompt_tokens: Tokens of the prompt.
        expected: What a right answer has.
        text: The answer.
        blocks_read: KV blocks that were read in full.
        blocks_total: KV blocks that there were to choose from; 0 in exact mode.
        skipped_mass: Mean share of the attention in blocks that were not read in full.
    """

    task: str
    length_tokens: int
    index: int
    arm: str
    score: float
    position: float | None
    prompt_tokens: int
    expected: tuple[str, ...]
    text: str
    blocks_read: int
    blocks_total: int
    skipped_mass: float

    @property
    def item(self) -> tuple[str, int, int]:
        """Task, length and index: what answers are paired by."""
        return self.task, self.length_tokens, self.index


@dataclass(slots=True)
class QualityResults:
    """Everything that was measured so far."""

    answers: list[TaskAnswer] = field(default_factory=list)
    cells: list[FidelityCell] = field(default_factory=list)

    def add(self, result: TaskAnswer | FidelityCell) -> None:
        """Keep one result."""
        if isinstance(result, TaskAnswer):
            self.answers.append(result)
        else:
            self.cells.append(result)
