"""Workers that wrap another worker: one counts the work, the other injects faults into results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from offbeat.core.jobs import Job, Result
from offbeat.engine import Answer, Worker, is_dense_tensor, ticket_of


@dataclass
class Work:
    """The work computed so far; `batches` counts how often answers were collected."""

    steps: int = 0
    jobs: int = 0
    batches: int = 0

    def __add__(self, other: Work) -> Work:
        """Return the sum of the work of two runs."""
        return Work(self.steps + other.steps, self.jobs + other.jobs, self.batches + other.batches)


class CountingWorker:
    """Add the work of another worker to `work`."""

    def __init__(self, worker: Worker, work: Work) -> None:
        self._worker, self._work = worker, work
        self.submit, self.cancel, self.close = worker.submit, worker.cancel, worker.close

    def collect(self, tickets: Collection[int]) -> Sequence[Answer]:
        """Collect answers and count the work in them."""
        answers = self._worker.collect(tickets)
        self._work.batches += 1
        self._work.jobs += len(answers)
        self._work.steps += sum(answer.steps for answer in answers if isinstance(answer, Result))
        return answers


class FaultyWorker:
    """Corrupt the results of another worker.

    The outcome of `spoil` depends on the job only, so it does not matter when or where the job was trained.
    """

    def __init__(self, worker: Worker, spoil: Callable[[Job, Result], Result]) -> None:
        self._worker, self._spoil = worker, spoil
        self._jobs: dict[int, Job] = {}

    def submit(self, job: Job, due: float) -> None:
        """Submit a job, and keep it until its answer is collected."""
        self._jobs[job.ticket] = job
        self._worker.submit(job, due)

    def cancel(self, ticket: int) -> None:
        """Cancel a job."""
        self._jobs.pop(ticket, None)
        self._worker.cancel(ticket)

    def collect(self, tickets: Collection[int]) -> list[Answer]:
        """Collect answers and corrupt the results in them."""
        return [self._corrupt(answer) for answer in self._worker.collect(tickets)]

    def close(self) -> None:
        """Drop all jobs and close the other worker."""
        self._jobs.clear()
        self._worker.close()

    def _corrupt(self, answer: Answer) -> Answer:
        """Apply `spoil` to a result that is a model vector; other results are rejected later anyway."""
        job = self._jobs.pop(ticket, None) if (ticket := ticket_of(answer)) is not None else None
        if job is None or not isinstance(answer, Result):
            return answer
        local, form = answer.local, (job.base.shape, job.base.dtype, job.base.device)
        is_model = is_dense_tensor(local) and (local.shape, local.dtype, local.device) == form
        return self._spoil(job, answer) if is_model else answer
