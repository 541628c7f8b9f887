"""Workers compute jobs. They are told of a job when it is dispatched, and asked for its result when that is due.

Jobs are pure and independent: a worker may compute them at once, late, together, elsewhere or twice. What it is asked
for it must answer; answers to other submitted jobs may come along, and are kept until they are due.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from offbeat.core.jobs import Failure, Job, Result

Answer = Result | Failure


class Worker(Protocol):
    def submit(self, job: Job, due: float) -> None:
        """The job will be asked for at that time, unless the run ends before."""
        ...

    def cancel(self, ticket: int) -> None:
        """Nobody will ask for it any more."""
        ...

    def collect(self, tickets: Collection[int]) -> Sequence[Answer]:
        """Answers to these tickets, and to as many other submitted jobs as suit this worker."""
        ...

    def close(self) -> None:
        """No more jobs: let go of processes, memory and devices."""
        ...
