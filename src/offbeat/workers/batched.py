"""The worker `batched`, which trains many jobs as one tensor program, also used by `cuda`.

It trains the jobs that are due together with other submitted jobs, up to the size of a stack. With several processes it
divides them into as many stacks, the most urgent jobs in the first, and the run continues when that one is done. Jobs
wait until a result is needed: dispatching them eagerly would produce small stacks and leave workers waiting for each
other.

The stacks depend only on the events of the run, never on host time. So a run gives the same bits again, also after a
resume. Each result equals the result of `inline` within rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from math import ceil
from typing import Any, Protocol

from offbeat.core.errors import describe_error
from offbeat.core.jobs import Failure, Job, Result
from offbeat.engine import Answer
from offbeat.workers.inline import Inline, JobBlock, Train, train_or_fail


class JobTrainer(Protocol):
    """Trains many jobs together, such as `Dispatcher`."""

    @property
    def max_jobs(self) -> int:
        """The maximum number of jobs in a stack."""
        ...

    def train_many(self, jobs: Sequence[Job]) -> Sequence[Result | Exception]:
        """Return a result or an exception for each job, in order."""
        ...

    def close(self) -> None: ...


class BlockWorker(Protocol):
    """A worker for blocks of jobs, whose answers are lists of answers."""

    def submit(self, job: Any, due: float) -> None: ...

    def cancel(self, ticket: int) -> None: ...

    def collect(self, tickets: Collection[int]) -> Sequence[Any]: ...

    def close(self) -> None: ...


class Batched:
    """Train stacks of jobs, `count` at a time.

    With more than one, `make_worker` makes the worker that trains the stacks after the first one.
    """

    def __init__(
        self, trainer: JobTrainer, count: int = 1, make_worker: Callable[[Train], BlockWorker] = Inline
    ) -> None:
        self._trainer, self._count = trainer, count
        self._jobs: dict[int, Job] = {}  # not in a block yet
        self._new: list[tuple[float, int]] = []  # (due, ticket) of the jobs submitted since the last block was made
        self._dues: list[tuple[float, int]] = []  # heap of the others; may contain jobs that are gone
        self._blocks = make_worker(self._train_block)
        self._block_of: dict[int, int] = {}  # ticket -> number of its block
        self._wanted: dict[int, set[int]] = {}  # number of a block -> its tickets that are not cancelled
        self._next = 0  # number of the next block
        self._done: dict[int, Any] = {}  # answers of blocks that were trained here

    def submit(self, job: Job, due: float) -> None:
        self._jobs[job.ticket] = job
        self._new.append((due, job.ticket))

    def cancel(self, ticket: int) -> None:
        self._jobs.pop(ticket, None)
        number = self._block_of.pop(ticket, None)
        if number is not None:
            self._wanted[number].discard(ticket)
            if not self._wanted[number]:
                del self._wanted[number]
                self._done.pop(number, None)
                self._blocks.cancel(number)

    def collect(self, tickets: Collection[int]) -> list[Answer]:
        answers: list[Answer] = []
        if self._count == 1:  # blocks are trained at once, so no ticket is in one
            for _, block in self._make_blocks(tickets) if tickets else ():
                job_tickets = [job.ticket for job in block.jobs]
                answers += _answers_or_failures(job_tickets, train_or_fail(self._train_block, block))
            return answers
        waiting = [ticket for ticket in tickets if ticket in self._jobs]
        for due, block in self._make_blocks(waiting) if waiting else ():
            self._submit_block(block, due)
        for number in dict.fromkeys(self._block_of[ticket] for ticket in tickets):
            answers += self._block_answers(number)
        return answers

    def close(self) -> None:
        for entries in (self._jobs, self._new, self._dues, self._block_of, self._wanted, self._done):
            entries.clear()
        self._next = 0
        self._blocks.close()
        self._trainer.close()

    def _make_blocks(self, tickets: Collection[int]) -> list[tuple[float, JobBlock]]:
        """Make blocks of these jobs and the most urgent others, up to the maximum size, with their due times."""
        jobs, limit = [self._jobs.pop(ticket) for ticket in tickets], self._count * self._trainer.max_jobs
        if self._count == 1 and len(jobs) + len(self._jobs) <= limit:  # all jobs fit: no need to order by due time
            jobs += [self._jobs[ticket] for ticket in sorted(self._jobs)]
            for entries in (self._jobs, self._new, self._dues):
                entries.clear()
        dues = [-1.0] * len(jobs)
        for entry in self._new:
            heappush(self._dues, entry)
        self._new.clear()
        while self._dues and (len(jobs) < limit or self._dues[0][1] not in self._jobs):
            due, ticket = heappop(self._dues)
            if (job := self._jobs.pop(ticket, None)) is not None:
                jobs.append(job)
                dues.append(due)
        size = min(self._trainer.max_jobs, ceil(len(jobs) / self._count))
        first, self._next = self._next, self._next + ceil(len(jobs) / size)
        starts = enumerate(range(0, len(jobs), size), first)
        return [(dues[at], JobBlock(number, tuple(jobs[at : at + size]))) for number, at in starts]

    def _submit_block(self, block: JobBlock, due: float) -> None:
        self._wanted[block.ticket] = {job.ticket for job in block.jobs}
        self._block_of |= dict.fromkeys(self._wanted[block.ticket], block.ticket)
        if block.ticket == 0:  # in this process, so that compilation and warnings happen once, before any fork
            self._done[block.ticket] = train_or_fail(self._train_block, block)
        else:
            self._blocks.submit(block, due)

    def _block_answers(self, number: int) -> list[Answer]:
        answers = self._done.pop(number) if number in self._done else self._blocks.collect((number,))[0]
        wanted = self._wanted.pop(number)
        for ticket in wanted:
            del self._block_of[ticket]
        return [answer for answer in _answers_or_failures(sorted(wanted), answers) if answer.ticket in wanted]

    def _train_block(self, block: JobBlock) -> list[Answer]:
        return [
            Failure(job.ticket, describe_error(answer)) if isinstance(answer, Exception) else answer
            for job, answer in zip(block.jobs, self._trainer.train_many(block.jobs), strict=True)
        ]


def _answers_or_failures(tickets: Sequence[int], answers: list[Answer] | Failure) -> list[Answer]:
    """Return the answers of a block, or a failure of each job if the whole block failed."""
    return [Failure(ticket, answers.reason) for ticket in tickets] if isinstance(answers, Failure) else answers
