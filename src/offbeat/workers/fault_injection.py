"""A worker whose answers may be spoilt on their way: damaged or poisoned uploads, for any other worker."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import Tensor

from offbeat.core.jobs import Job, Result
from offbeat.engine.gate import dense, ticket_of
from offbeat.engine.worker import Answer, Worker


class Faulty:
    """What `spoil` makes of a result depends on the job alone, so it does not matter when or where it was computed."""

    def __init__(self, worker: Worker, spoil: Callable[[Job, Result], Result]) -> None:
        self._worker, self._spoil = worker, spoil
        self._jobs: dict[int, Job] = {}

    def submit(self, job: Job, due: float) -> None:
        self._jobs[job.ticket] = job
        self._worker.submit(job, due)

    def cancel(self, ticket: int) -> None:
        self._jobs.pop(ticket, None)
        self._worker.cancel(ticket)

    def collect(self, tickets: Collection[int]) -> list[Answer]:
        return [self._spoilt(answer) for answer in self._worker.collect(tickets)]

    def close(self) -> None:
        self._jobs.clear()
        self._worker.close()

    def _spoilt(self, answer: Answer) -> Answer:
        job = self._jobs.pop(number, None) if (number := ticket_of(answer)) is not None else None
        if (
            job is None
            or not isinstance(answer, Result)
            or not dense(answer.local)
            or not _alike(answer.local, job.base)
        ):
            return answer  # no model: nothing that could be spoilt any more
        return self._spoil(job, answer)


def _alike(local: Tensor, base: Tensor) -> bool:
    return local.dim() == 1 and (local.shape, local.dtype, local.device) == (base.shape, base.dtype, base.device)
