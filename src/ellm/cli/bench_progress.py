"""How far a benchmark is: one line while the text is read, one while steps are timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ellm.cli.console import Console, ProgressLine
from ellm.cli.generation import reading_detail
from ellm.units import format_count

if TYPE_CHECKING:
    from ellm.engine.benchmark_outputs import StepProgress
    from ellm.engine.outputs import PromptProgress


class BenchProgress:
    """Shows what a benchmark reports."""

    def __init__(self, console: Console) -> None:
        """Draw nothing yet."""
        self._console = console
        self._reading = console.progress("reading")
        self._timing: dict[int, ProgressLine] = {}

    def show(self, step: PromptProgress | StepProgress) -> None:
        """Show the step in the line that it belongs to."""
        from ellm.engine.outputs import PromptProgress

        if isinstance(step, PromptProgress):
            self._reading.update(step.done_tokens, step.total_tokens, reading_detail(step))
            return
        depth = step.depth_tokens
        if depth not in self._timing:
            label = f"timing at {format_count(depth)} tokens"
            self._timing[depth] = self._console.progress(label)
        detail = f"{step.done_steps} of {step.total_steps} steps"
        self._timing[depth].update(step.done_steps, step.total_steps, detail)

    def clear(self) -> None:
        """Remove the lines from the terminal."""
        for line in (self._reading, *self._timing.values()):
            line.clear()
