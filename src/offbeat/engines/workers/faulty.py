"""A worker whose answers may be spoilt on their way: damaged or poisoned uploads, for any other worker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from offbeat.core.jobs import Job, Result
from offbeat.engines.gate import dense, ticket_of
from offbeat.engines.workers import Answer, Worker


@dataclass(frozen=True, slots=True)
class Faulty:
    """What `spoil` makes of a result depends on the job alone, so it does not matter when or where it was computed."""

    worker: Worker
    spoil: Callable[[Job, Result], Result]

    @property
    def batches(self) -> bool:
        return self.worker.batches

    def compute(self, needed: Job, pending: Collection[Job]) -> list[Answer]:
        jobs = {job.ticket: job for job in (needed, *pending)}
        return [self._spoilt(answer, jobs) for answer in self.worker.compute(needed, pending)]

    def _spoilt(self, answer: Answer, jobs: Mapping[int, Job]) -> Answer:
        job = jobs.get(number) if (number := ticket_of(answer)) is not None else None
        if job is None or not isinstance(answer, Result) or not dense(answer.local) or not _alike(answer.local, job.base):
            return answer  # no model: nothing that could be spoilt any more
        return self.spoil(job, answer)


def _alike(local: Tensor, base: Tensor) -> bool:
    return local.dim() == 1 and (local.shape, local.dtype, local.device) == (base.shape, base.dtype, base.device)
