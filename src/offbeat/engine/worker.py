"""The interface of workers, which compute jobs.

An engine submits a job when it is dispatched and collects its result when that is due. Jobs are pure and independent: a
worker may compute them early, late, together, elsewhere or twice. It must answer the tickets it is asked for; it may
return answers to other submitted jobs along with them, which the engine keeps until they are due.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from offbeat.core.jobs import Failure, Job, Result

Answer = Result | Failure


class Worker(Protocol):
    """Computes submitted jobs."""

    def submit(self, job: Job, due: float) -> None:
        """Accept a job; its result is collected at time `due`, unless the run ends before."""
        ...

    def cancel(self, ticket: int) -> None:
        """Drop a submitted job that will not be collected."""
        ...

    def collect(self, tickets: Collection[int]) -> Sequence[Answer]:
        """Return answers to these tickets, and to any number of other submitted jobs."""
        ...

    def close(self) -> None:
        """Release processes, memory and devices; no more jobs follow."""
        ...
