"""The worker `inline`, which trains each job in this process when its result is needed, and blocks of jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from offbeat.core.errors import describe_error
from offbeat.core.jobs import Failure, Job
from offbeat.engine import Answer

Train = Callable[[Any], Any]  # trains a job, or a block of jobs


@dataclass(frozen=True, slots=True)
class JobBlock:
    """Jobs that are sent and trained together; its answer is a list of answers."""

    ticket: int  # numbers blocks, independent of the tickets of jobs
    jobs: tuple[Job, ...]


class Inline:
    """A worker that keeps jobs until they are collected, and trains them then."""

    def __init__(self, train: Train) -> None:
        self._train = train
        self._jobs: dict[int, Job] = {}

    def submit(self, job: Job, due: float) -> None:
        """Keep a job until it is collected."""
        self._jobs[job.ticket] = job

    def cancel(self, ticket: int) -> None:
        """Drop a job."""
        self._jobs.pop(ticket, None)

    def collect(self, tickets: Collection[int]) -> list[Answer]:
        """Train the jobs with these tickets."""
        answers: list[Answer] = []
        for ticket in tickets:  # faster than a comprehension, because there is usually one ticket
            answers.append(train_or_fail(self._train, self._jobs.pop(ticket)))
        return answers

    def close(self) -> None:
        """Drop all jobs."""
        self._jobs.clear()


def train_or_fail(train: Train, work: Job | JobBlock) -> Any:
    """Return the result of a job or block, or a Failure if it raised; lack of memory is raised."""
    try:
        return train(work)
    except MemoryError:
        raise  # a problem of this machine, not of the client's job
    except Exception as error:
        return Failure(work.ticket, describe_error(error))
