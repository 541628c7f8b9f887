"""Jobs that are computed together: as one, wherever a worker sends one job."""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.core.jobs import Job


@dataclass(frozen=True, slots=True)
class Block:
    ticket: int  # a number of its own
    jobs: tuple[Job, ...]


def jobs_of(work: Job | Block) -> tuple[Job, ...]:
    return work.jobs if isinstance(work, Block) else (work,)


def in_words(work: Job | Block) -> str:
    if isinstance(work, Block):
        return f"a stack of {len(work.jobs)} jobs"
    return f"job {work.index} of client {work.client}"
