"""A worker whose work is counted, for whoever watches a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from offbeat.core.jobs import Job, Result
from offbeat.engine.worker import Answer, Worker


@dataclass
class Work:
    """What was computed so far: steps of training, jobs, and how many times some of these came together."""

    steps: int = 0
    jobs: int = 0
    batches: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.steps + other.steps, self.jobs + other.jobs, self.batches + other.batches)


class Counted:
    def __init__(self, worker: Worker, work: Work) -> None:
        self._worker, self._work = worker, work

    def submit(self, job: Job, due: float) -> None:
        self._worker.submit(job, due)

    def cancel(self, ticket: int) -> None:
        self._worker.cancel(ticket)

    def close(self) -> None:
        self._worker.close()

    def collect(self, tickets: Collection[int]) -> Sequence[Answer]:
        answers = self._worker.collect(tickets)
        self._work.batches += 1
        self._work.jobs += len(answers)
        self._work.steps += sum(answer.steps for answer in answers if isinstance(answer, Result))
        return answers
