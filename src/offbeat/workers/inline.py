"""The plain worker: one job at a time, in this process, exactly when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from offbeat.core.errors import in_words
from offbeat.core.jobs import Failure, Job
from offbeat.engine.worker import Answer


class Inline:
    def __init__(self, train: Callable[[Any], Any]) -> None:
        self._train = train
        self._jobs: dict[int, Job] = {}

    def submit(self, job: Job, due: float) -> None:
        self._jobs[job.ticket] = job

    def cancel(self, ticket: int) -> None:
        self._jobs.pop(ticket, None)

    def collect(self, tickets: Collection[int]) -> list[Answer]:
        answers: list[Answer] = []
        for ticket in tickets:  # no comprehension: for one ticket, as a rule, that is another call
            answers.append(computed(self._train, self._jobs.pop(ticket)))
        return answers

    def close(self) -> None:
        self._jobs.clear()


def computed(train: Callable[[Any], Any], job: Any) -> Any:
    """What comes of a job, or of a block of them: a result, or that it raised."""
    try:
        return train(job)
    except MemoryError:
        raise  # the machine's trouble, not this client's
    except Exception as error:
        return Failure(job.ticket, in_words(error))
