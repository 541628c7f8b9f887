"""A worker that uses every freedom of a worker, unlike `inline`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from random import Random

import torch

from offbeat.core.jobs import Job, Result
from offbeat.engine.worker import Answer


class ShufflingWorker:
    """Trains each job twice, in another thread, in random order and in blocks of random size.

    Answers arrive early and in random order.
    """

    def __init__(self, train: Callable[[Job], Result], seed: int) -> None:
        self._train, self._random = train, Random(seed)
        self._thread = ThreadPoolExecutor(max_workers=1, initializer=torch.set_num_threads, initargs=(1,))
        self._waiting: dict[int, Job] = {}

    def submit(self, job: Job, due: float) -> None:
        self._waiting[job.ticket] = job

    def cancel(self, ticket: int) -> None:
        self._waiting.pop(ticket, None)

    def collect(self, tickets: Collection[int]) -> list[Answer]:
        others = [ticket for ticket in self._waiting if ticket not in tickets]
        block = [*tickets, *self._random.sample(others, self._random.randint(0, len(others)))]
        self._random.shuffle(block)
        jobs = [self._waiting.pop(ticket) for ticket in block]
        return self._thread.submit(self._train_twice, jobs).result()

    def close(self) -> None:
        self._thread.shutdown()

    def _train_twice(self, jobs: list[Job]) -> list[Answer]:
        for job in reversed(jobs):
            self._train(job)
        return [self._train(job) for job in jobs]
