"""How far a measurement is, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

# A token of an answer takes about as long as five of a prompt: the whole of the weights is read
# for one row. Only the estimate of the time left hangs on it.
DECODE_COST = 5


@dataclass(frozen=True, slots=True)
class QualityProgress:
    """How far a measurement is.

    Attributes:
        what: What is being done.
        done_share: Share of all work, 0..1.
        done_jobs: Prompts that are finished.
        total_jobs: Prompts in all.
        seconds_left: Time left at the mean rate so far.
    """

    what: str
    done_share: float
    done_jobs: int
    total_jobs: int
    seconds_left: float


ProgressCallback = Callable[[QualityProgress], None]


class Work:
    """Adds up work in costs: a token of a prompt is 1."""

    def __init__(self, total_cost: int, total_jobs: int, progress: ProgressCallback) -> None:
        """Start the clock with the first job."""
        self._total_cost = total_cost
        self._total_jobs = total_jobs
        self._progress = progress
        self._started: float | None = None
        self._done_cost = 0
        self._done_jobs = 0
        self._job_cost = 0

    def begin(self, cost: int) -> None:
        """Begin a job that will cost so much."""
        self._job_cost = cost
        if self._started is None:
            self._started = time.monotonic()

    def tell(self, what: str, cost: int) -> None:
        """Report what of the job is being done, and how much of its cost is behind it."""
        done = self._done_cost + min(cost, self._job_cost)
        elapsed = time.monotonic() - (self._started or 0.0)
        left = elapsed * (self._total_cost - done) / done if done else 0.0
        share = done / self._total_cost if self._total_cost else 1.0
        self._progress(QualityProgress(what, share, self._done_jobs, self._total_jobs, left))

    def finish(self) -> None:
        """End the job."""
        self._done_cost += self._job_cost
        self._done_jobs += 1
