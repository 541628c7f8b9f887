"""One worker for many runs: each has a port of its own, and whatever any of them has sent is computed together.

Tickets of different runs would meet, so a pool numbers jobs itself. Whose a job is, a worker learns from `owner`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from offbeat.core.jobs import Job, Result
from offbeat.engine.gate import ticket_of
from offbeat.engine.worker import Answer, Worker


class Pool:
    """`make` is given a function that says to whom a job belongs, and makes the worker."""

    def __init__(self, make: Callable[[Callable[[Job], int]], Worker]) -> None:
        self._sent: dict[int, tuple[int, int]] = {}  # number -> (run, its ticket)
        self._numbers: dict[tuple[int, int], int] = {}
        self._ready: dict[int, list[Answer]] = {}  # run -> answers it has not fetched yet
        self._next = 0
        self._worker = make(self.owner)

    def owner(self, job: Job) -> int:
        return self._sent[job.ticket][0]

    def port(self, run: int) -> Port:
        return Port(self, run)

    def submit(self, run: int, job: Job, due: float) -> None:
        number, self._next = self._next, self._next + 1
        self._sent[number], self._numbers[run, job.ticket] = (run, job.ticket), number
        self._worker.submit(replace(job, ticket=number), due)

    def cancel(self, run: int, ticket: int) -> None:
        number = self._numbers.pop((run, ticket), None)
        if number is not None:
            self._worker.cancel(number)
            self._sent.pop(number, None)

    def gather(self, wanted: Mapping[int, int]) -> None:
        """Have the answer to one ticket of each run, and whatever else comes along, ready for the ports."""
        for answer in self._worker.collect([self._numbers[asked] for asked in wanted.items()]):
            number = ticket_of(answer)
            if number is None or number not in self._sent:
                continue  # nobody's
            run, ticket = self._sent.pop(number)
            self._numbers.pop((run, ticket), None)
            self._ready.setdefault(run, []).append(
                Result(ticket, answer.local, answer.num_examples, answer.steps, answer.extras, answer.memory)
                if isinstance(answer, Result)
                else replace(answer, ticket=ticket)
            )

    def ready(self, run: int) -> list[Answer]:
        return self._ready.pop(run, [])

    def leave(self, run: int) -> None:
        """The run has no more jobs."""
        self._ready.pop(run, None)
        for key in [key for key in self._numbers if key[0] == run]:
            self.cancel(*key)

    def close(self) -> None:
        self._worker.close()


class Port:
    """A worker, as one run sees it."""

    def __init__(self, pool: Pool, run: int) -> None:
        self._pool, self._run = pool, run

    def submit(self, job: Job, due: float) -> None:
        self._pool.submit(self._run, job, due)

    def cancel(self, ticket: int) -> None:
        self._pool.cancel(self._run, ticket)

    def collect(self, tickets: Collection[int]) -> list[Answer]:
        """What the pool has gathered for this run."""
        return self._pool.ready(self._run)

    def close(self) -> None:
        self._pool.leave(self._run)
