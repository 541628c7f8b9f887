"""Many jobs in one tensor program: what is due, and with it whatever else has been sent, as far as a stack may go.

Which jobs are stacked follows from what was submitted, cancelled and asked for, in which order: from the events of the
run, never from host time. So the same run gives the same bits again. Each job is within rounding of what `inline` makes
of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from typing import Protocol

from offbeat.core.errors import in_words
from offbeat.core.jobs import Failure, Job, Result
from offbeat.engines.workers import Answer


class Stacked(Protocol):
    """Trains many jobs together (`client.stack.StackTrainer`)."""

    @property
    def most(self) -> int:
        """How many at once."""
        ...

    def attempt(self, jobs: Sequence[Job]) -> Sequence[Result | Exception]:
        """A result for each, in order, or what went wrong with it."""
        ...

    def close(self) -> None: ...


class Batched:
    def __init__(self, stacked: Stacked) -> None:
        self._stacked = stacked
        self._jobs: dict[int, Job] = {}
        self._dues: list[tuple[float, int]] = []  # a heap of (due, ticket); some of them are gone already

    def submit(self, job: Job, due: float) -> None:
        self._jobs[job.ticket] = job
        heappush(self._dues, (due, job.ticket))

    def cancel(self, ticket: int) -> None:
        self._jobs.pop(ticket, None)

    def collect(self, tickets: Collection[int]) -> list[Answer]:
        jobs = [self._jobs.pop(ticket) for ticket in tickets]
        while self._dues and len(jobs) < self._stacked.most:
            _, ticket = heappop(self._dues)
            if (job := self._jobs.pop(ticket, None)) is not None:
                jobs.append(job)
        found: list[Answer] = []
        for first in range(0, len(jobs), self._stacked.most):
            block = jobs[first : first + self._stacked.most]
            answers = self._stacked.attempt(block)
            found += (
                Failure(job.ticket, in_words(answer)) if isinstance(answer, Exception) else answer
                for job, answer in zip(block, answers, strict=True)
            )
        return found

    def close(self) -> None:
        self._jobs.clear()
        self._dues.clear()
        self._stacked.close()
