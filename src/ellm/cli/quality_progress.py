"""How far a measurement of quality is: one line for all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ellm.cli.console import Console
from ellm.units import format_count, format_duration

if TYPE_CHECKING:
    from ellm.quality.work import QualityProgress


class QualityProgressLine:
    """Shows what a run reports."""

    def __init__(
        self, console: Console, *, label: str = "measuring", jobs: str = "prompts"
    ) -> None:
        """Draw nothing yet; `jobs` is what is counted."""
        self._line = console.progress(label)
        self._jobs = jobs

    def show(self, step: QualityProgress) -> None:
        """Show a step."""
        detail = (
            f"{format_count(step.done_jobs)} of {format_count(step.total_jobs)} {self._jobs}, "
            f"{format_duration(step.seconds_left)} left; {step.what}"
        )
        self._line.update(step.done_share, 1.0, detail)

    def clear(self) -> None:
        """Remove the line from the terminal."""
        self._line.clear()
