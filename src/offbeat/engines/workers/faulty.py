"""A worker whose answers may be spoilt on their way: damaged or poisoned uploads, for any other worker."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from offbeat.core.jobs import Job, Result
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
        answers = self.worker.compute(needed, pending)
        return [self.spoil(jobs[a.ticket], a) if isinstance(a, Result) and a.ticket in jobs else a for a in answers]
