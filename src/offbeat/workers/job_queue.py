"""Distribute jobs to members, such as processes: the most urgent first, ahead of their time, and again after a death.

Subclasses define what a member is and how jobs and answers travel.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from heapq import heappop, heappush
from math import inf
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from offbeat.core.errors import RunError, to_single_line
from offbeat.core.jobs import Job
from offbeat.core.protocol import LocalWork
from offbeat.workers.inline import JobBlock, Train, train_or_fail
from offbeat.workers.process_pool import ANSWER, UNSENDABLE, decode_text
from offbeat.workers.shared_memory_codec import Unsendable

log = logging.getLogger("offbeat")

JOBS_PER_MEMBER = 2  # one in training, and one to continue with at once
RESULTS_AHEAD = 16  # results per member that may be computed before they are collected,
MAX_WAITING_BYTES = 1 << 29  # and the approximate size of all of them
MAX_DEATHS = 3  # deaths of members during the same job, after which the job is the likely cause


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def job_fields(work: Job | JobBlock) -> tuple[object, ...]:
    """Convert a job or block to a tuple that can be pickled; its mappings become dicts, which can always be pickled."""
    if isinstance(work, JobBlock):
        return work.ticket, tuple(map(job_fields, work.jobs))
    job, local = work, work.work
    local_fields = local.steps, local.epochs, local.lr, local.rule, dict(local.extras)
    rest = job.base_version, local_fields, job.num_examples, dict(job.memory), job.seed, job.started
    return job.ticket, job.client, job.index, job.base, *rest


def job_from_fields(fields: tuple[Any, ...]) -> Job | JobBlock:
    """Rebuild a job or block from the result of `job_fields`."""
    if len(fields) == 2:
        return JobBlock(fields[0], tuple(map(job_from_fields, fields[1])))  # type: ignore[arg-type]
    ticket, client, index, base, version, local, num_examples, memory, seed, started = fields
    return Job(ticket, client, index, base, version, LocalWork(*local), num_examples, memory, seed, started)


class QueueMember(Protocol):
    """A process or actor that trains jobs."""

    @property
    def jobs(self) -> deque[tuple[Any, int, float]]:
        """The jobs sent to it, the earliest first: (handle of the subclass, ticket, due)."""
        ...


class MemberLost(Exception):
    """Raised if a member died before it received a job; the job must be sent again."""


Member = TypeVar("Member", bound=QueueMember)


class JobQueue(ABC, Generic[Member]):
    """A worker that sends jobs, or blocks of jobs, to its members.

    Members are started when the first result is collected. The jobs of a member that dies are sent again.
    """

    name: ClassVar[str]  # of the worker
    destination: ClassVar[str]  # for messages: where jobs are sent
    death_causes: ClassVar[str]  # for messages

    def __init__(self, train: Train) -> None:
        self._train = train
        self._jobs: dict[int, Job | JobBlock] = {}  # submitted, not yet collected
        self._unsent: dict[int, float] = {}  # ticket -> due
        self._order: list[tuple[float, int]] = []  # heap of (due, ticket); may contain jobs that are no longer unsent
        self._local: set[int] = set()  # jobs that cannot be sent, which this process trains
        self._answers: dict[int, object] = {}  # not yet collected
        self._deaths: dict[int, int] = {}  # ticket -> members that died while they trained it; 0: while it waited there
        self._members: list[Member] = []
        self._started = False
        self._inline_only = False  # no member can train, so this process does
        self._max_ahead = 0  # limit of answers that are in training or not yet collected
        self._warned: set[str] = set()  # the beginnings of warnings that were logged

    # ------------------------------------------------------------ interface of a worker

    def submit(self, job: Job | JobBlock, due: float) -> None:
        """Enqueue a job, and send it if a member is free."""
        self._jobs[job.ticket] = job
        self._enqueue(job.ticket, due)
        if self._started:
            self._receive_answers(timeout=0.0)
            self._send_jobs()

    def cancel(self, ticket: int) -> None:
        """Drop a job; its answer is ignored if a member is training it."""
        for tickets in (self._jobs, self._unsent, self._answers, self._deaths):
            tickets.pop(ticket, None)
        self._local.discard(ticket)

    def collect(self, tickets: Collection[int]) -> list[Any]:
        """Wait for the answers to these tickets."""
        for ticket in tickets:
            if ticket in self._unsent:
                heappush(self._order, (-inf, ticket))  # needed now, whatever its due time
        if not self._started:
            self._start()
        return [self._collect_answer(ticket) for ticket in tickets]

    def close(self) -> None:
        """End all members and drop all jobs."""
        self._end_members()
        for tickets in (self._jobs, self._unsent, self._order, self._local, self._answers, self._deaths):
            tickets.clear()
        self._started = self._inline_only = False

    # ------------------------------------------------------------ implemented by subclasses

    @abstractmethod
    def _start(self) -> None:
        """Set `_started` and prepare for sending jobs; called when the first result is needed."""

    @abstractmethod
    def _end_members(self) -> None:
        """End all members at once; they have no state."""

    @abstractmethod
    def _free_member(self, ticket: int) -> Member | None:
        """Return the member that gets this job now, or None."""

    @abstractmethod
    def _send(self, member: Member, job: Job | JobBlock, due: float) -> bool:
        """Send a job and append it to the member's jobs.

        Returns False if it cannot be sent now. Raises Unsendable if it never can, MemberLost if the member died.
        """

    @abstractmethod
    def _receive_answers(self, timeout: float | None = None) -> None:
        """Store the answers that have arrived; without a timeout, wait for one."""

    # ------------------------------------------------------------ jobs

    def _submitted_jobs(self) -> list[Job]:
        """Return all jobs that are not collected yet, including those in blocks."""
        return [job for work in self._jobs.values() for job in (work.jobs if isinstance(work, JobBlock) else [work])]

    def _enqueue(self, ticket: int, due: float) -> None:
        """Add a job to those that are not sent yet."""
        self._unsent[ticket] = due
        heappush(self._order, (due, ticket))

    def _collect_answer(self, ticket: int) -> object:
        """Wait for the answer to a ticket, remove the job and return the answer."""
        if ticket not in self._jobs:
            raise KeyError(ticket)
        self._receive_answers(timeout=0.0)
        self._wait_for_answer(ticket)
        answer = self._answers.pop(ticket)
        self.cancel(ticket)
        self._send_jobs()
        if isinstance(answer, MemoryError):
            raise answer
        return answer

    def _wait_for_answer(self, ticket: int) -> None:
        """Wait until the answer to a ticket has arrived."""
        while ticket not in self._answers:
            self._send_jobs(ticket)
            if ticket in self._local or self._inline_only:
                self._train_here(ticket)
            else:
                self._wait_for_any_answer()

    def _wait_for_any_answer(self) -> None:
        """Wait until an answer has arrived."""
        self._receive_answers()

    def _train_here(self, ticket: int) -> None:
        """Train a job in this process."""
        self._unsent.pop(ticket, None)
        self._answers[ticket] = train_or_fail(self._train, self._jobs[ticket])

    def _most_urgent_job(self) -> tuple[float, int] | None:
        """Return due time and ticket of the most urgent unsent job."""
        while self._order and self._order[0][1] not in self._unsent:
            heappop(self._order)  # sent or cancelled in the meantime
        return self._order[0] if self._order else None

    def _send_jobs(self, needed: int | None = None) -> None:
        """Send jobs until all members are busy or enough results are computed ahead; `needed` may exceed that limit."""
        while not self._inline_only and (first := self._most_urgent_job()) is not None:
            due, ticket = first
            in_training = sum(len(member.jobs) for member in self._members)
            if ticket != needed and len(self._answers) + in_training >= self._max_ahead:
                return
            member = self._free_member(ticket)
            if member is None:
                return
            try:
                if not self._send(member, self._jobs[ticket], due):
                    return
            except Unsendable as reason:
                self._keep_local(ticket, str(reason))
            except MemberLost:
                continue
            heappop(self._order)
            self._unsent.pop(ticket, None)

    def _limit_results_ahead(self, members: int, model_bytes: int) -> None:
        """Limit waiting results by their size, but never so far that members are idle."""
        limit = min(RESULTS_AHEAD * members, MAX_WAITING_BYTES // max(1, model_bytes))
        self._max_ahead = max(2 * JOBS_PER_MEMBER * members, limit)

    def _store_answer(
        self, ticket: int, kind: int, body: bytes | memoryview, unpack_body: Callable[[], object]
    ) -> None:
        """Store the answer to a job, unless the job was cancelled; `kind` is the kind of the message."""
        if ticket not in self._jobs:
            return
        if kind == ANSWER:
            self._answers[ticket] = unpack_body()
        elif kind == UNSENDABLE:
            self._keep_local(ticket, decode_text(body))
        else:
            self._answers[ticket] = MemoryError(decode_text(body))

    def _keep_local(self, ticket: int, reason: str) -> None:
        """Let this process train a job that cannot be sent."""
        self._local.add(ticket)
        self._warn_once(
            f"worker {self.name}: a job cannot be sent to {self.destination} ({to_single_line(reason)}): "
            "it is trained in this process"
        )

    def _requeue(self, member: Member, description: str) -> None:
        """Enqueue the jobs of a member that died; the first was in training and may be the cause."""
        for number, (_, ticket, due) in enumerate(member.jobs):
            if ticket not in self._jobs:
                continue  # cancelled
            self._deaths[ticket] = self._deaths.get(ticket, 0) + (number == 0)
            if self._deaths[ticket] >= MAX_DEATHS:
                job = self._jobs[ticket]
                if isinstance(job, JobBlock):
                    name = f"a stack of {len(job.jobs)} jobs"
                else:
                    name = f"job {job.index} of client {job.client}"
                raise RunError(
                    f"{name} ended {MAX_DEATHS} processes, the last one {description}: "
                    f"{self.death_causes}; with --worker inline it would end the run itself"
                )
            self._enqueue(ticket, due)

    def _warn_once(self, line: str) -> None:
        """Log a warning, unless one with the same text before the first bracket was logged."""
        key = line.partition("(")[0]
        if key not in self._warned:
            self._warned.add(key)
            log.warning("%s", line)
