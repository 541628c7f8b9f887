"""A worker of several processes on this machine: the same bits as inline, sooner.

Processes are forked from when the first result is asked for, up to one a core, each with one thread. Jobs are started
ahead of their due time, in its order. A process that dies is replaced and its job repeated, which is safe because jobs
are pure. No lock is shared: each process has a pipe of its own to this one, and memory of its own that both see.
"""

from __future__ import annotations

import logging
import os
import select
import weakref
from collections.abc import Collection
from contextlib import suppress
from heapq import heappop, heappush
from math import inf
from typing import Any

from offbeat.core.errors import RunError, plain_text
from offbeat.core.jobs import Job
from offbeat.engines.workers.blocks import Block, in_words, jobs_of
from offbeat.engines.workers.forked import ANSWER, GONE, NO_MEMORY, STAYS, Train, receive
from offbeat.engines.workers.inline import computed
from offbeat.engines.workers.members import DEPTH, Member, end_all, fork
from offbeat.engines.workers.parcels import Unsendable, unpack

log = logging.getLogger("offbeat")

AHEAD = 16  # results a process may have computed that nobody asked for yet,
KEPT = 1 << 29  # and the bytes of all of them, about
DEATHS = 3  # of processes over one job: then it is the job


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


class Processes:
    """Of jobs, or of blocks of up to `most` jobs each: then an answer is what `train` makes of a block.

    `helps`: this process trains too while it waits, first what it waits for; others have one block at a time, so that
    there is something left for it. Who trains what then depends on time; what
    comes of it does not.
    """

    def __init__(self, train: Train, count: int | None = None, most: int = 1, helps: bool = False) -> None:
        self._train, self._count, self._most_jobs, self._helps = train, count or cores(), most, helps
        self._jobs: dict[int, Job | Block] = {}  # submitted, not yet answered
        self._due: dict[int, float] = {}  # of those that are nowhere yet,
        self._order: list[tuple[float, int]] = []  # a heap of them, and of some that are gone
        self._here: set[int] = set()  # those that cannot travel: they are trained in this process
        self._answers: dict[int, Any] = {}  # that nobody asked for yet
        self._deaths: dict[int, int] = {}  # of processes that had it
        self._members: list[Member] = []
        self._ears = select.poll()  # for all of them
        self._started, self._alone = False, False
        self._most = self._count  # of them; fewer where the system starts no more
        self._ahead = self._model = 0  # results that may wait; bytes of a model, of as many as make up a block
        self._known: list[Any] = []  # rules that processes inherit: of these any class will do
        self._numbers: dict[int, int] = {}
        self._said = False
        self._end = weakref.finalize(self, end_all, self._members, os.getpid())

    # ------------------------------------------------------------ what a worker does

    def submit(self, job: Job | Block, due: float) -> None:
        self._jobs[job.ticket] = job
        self._wait_for(job.ticket, due)
        if self._started:
            self._hear(timeout=0.0)
            self._hand_out()

    def cancel(self, ticket: int) -> None:
        for held in (self._jobs, self._due, self._answers, self._deaths):
            held.pop(ticket, None)
        self._here.discard(ticket)

    def collect(self, tickets: Collection[int]) -> list[Any]:
        for ticket in tickets:
            if ticket in self._due:
                heappush(self._order, (-inf, ticket))  # whatever it was to be: now is when it is needed
        if not self._started:
            self._start()
        return [self._answer(ticket) for ticket in tickets]

    def close(self) -> None:
        self._end_all()
        for held in (self._jobs, self._due, self._order, self._here, self._answers, self._deaths):
            held.clear()
        self._started, self._alone, self._most = False, False, self._count

    # ------------------------------------------------------------ jobs

    def _wait_for(self, ticket: int, due: float) -> None:
        self._due[ticket] = due
        heappush(self._order, (due, ticket))

    def _answer(self, ticket: int) -> Any:
        if ticket not in self._jobs:
            raise KeyError(ticket)
        self._hear(timeout=0.0)
        if self._helps and ticket in self._due:
            del self._due[ticket]
            self._hand_out()  # the others, meanwhile
            self._compute(ticket)
        while ticket not in self._answers:
            self._hand_out(ticket)
            if ticket in self._here or self._alone:
                self._compute(ticket)
            elif self._helps and (other := self._most_urgent()) is not None:
                self._compute(other)
                self._hear(timeout=0.0)
            else:
                self._hear()
        answer = self._answers.pop(ticket)
        self.cancel(ticket)
        self._hand_out()
        if isinstance(answer, MemoryError):
            raise answer
        return answer

    def _compute(self, ticket: int) -> None:
        """In this process."""
        self._due.pop(ticket, None)
        self._answers[ticket] = computed(self._train, self._jobs[ticket])

    def _most_urgent(self) -> int | None:
        """Of those that nobody is at."""
        while self._order and self._order[0][1] not in self._due:
            heappop(self._order)
        return self._order[0][1] if self._order else None

    def _hand_out(self, needed: int | None = None) -> None:
        """To every process as many jobs as keep it busy, the most urgent first."""
        while self._order and not self._alone:
            due, ticket = self._order[0]
            if ticket not in self._due:
                heappop(self._order)  # it was sent or cancelled meanwhile
                continue
            under_way = sum(map(Member.load, self._members))
            if ticket != needed and len(self._answers) + under_way >= self._ahead:
                return
            member = self._least_busy()
            if member is None or not member.free or (self._helps and member.jobs):
                return
            try:
                if not member.take(self._jobs[ticket], due, self._numbers):
                    return
            except Unsendable as reason:
                self._stays(ticket, str(reason))
            except GONE:
                self._replace(member)
                continue
            heappop(self._order)
            self._due.pop(ticket, None)

    def _stays(self, ticket: int, reason: str) -> None:
        self._here.add(ticket)
        if not self._said:
            self._said = True
            log.warning("worker processes: a job cannot be sent to one (%s): trained in this one", plain_text(reason))

    # ------------------------------------------------------------ processes

    def _start(self) -> None:
        """Rules that are known by now need not travel: most strategies have one for all jobs, of any class."""
        self._started = True
        jobs = [job for work in self._jobs.values() for job in jobs_of(work)]
        rules = {id(rule): rule for job in jobs if (rule := job.work.rule) is not None}
        self._known = list(rules.values())
        self._numbers = {id(rule): number for number, rule in enumerate(self._known)}
        self._model = self._most_jobs * max((job.base.nbytes for job in jobs), default=0)
        least, most = 2 * DEPTH * self._count, AHEAD * self._count
        self._ahead = max(least, min(most, KEPT // max(1, self._model)))

    def _least_busy(self) -> Member | None:
        """A new one, as long as all are busy and there may be more."""
        found = min(self._members, key=Member.load, default=None)
        if (found is not None and not found.jobs) or len(self._members) >= self._most:
            return found
        try:
            made = fork(self._train, self._model, self._known, self._members)
        except OSError as error:
            self._most, self._alone = len(self._members), not self._members
            what = "no process could be started" if self._alone else f"only {self._most} could be started"
            log.warning("worker processes: %s (%s)", what, error.strerror or error)
            return found
        self._ears.register(made.pipe.fileno(), select.POLLIN)
        return made

    def _replace(self, member: Member) -> None:
        """One that died: the job it was at may be why."""
        with suppress(*GONE):
            while member.pipe.poll():
                self._book(member, *receive(member.pipe))  # what it still had to say
        if self._alone:
            return
        self._ears.unregister(member.pipe.fileno())
        how = member.end()
        self._members.remove(member)
        for number, (_, ticket, due) in enumerate(member.jobs):
            if ticket not in self._jobs:
                continue  # cancelled meanwhile
            if number == 0:
                self._deaths[ticket] = self._deaths.get(ticket, 0) + 1
                self._give_up_on(self._jobs[ticket], how)
            self._wait_for(ticket, due)
        log.warning("a process of the worker %s; it is replaced, and its job repeated", how)

    def _give_up_on(self, job: Job | Block, how: str) -> None:
        if self._deaths[job.ticket] >= DEATHS:
            raise RunError(
                f"{in_words(job)} ended {DEATHS} processes, the last one {how}: there is too "
                "little memory, or native code fails; with --worker inline it would end the run itself"
            )

    def _hear(self, timeout: float | None = None) -> None:
        """Answers that are there; with no timeout, until there is one."""
        for number, _ in self._ears.poll(timeout):
            member = next((member for member in self._members if member.pipe.fileno() == number), None)
            if member is None:
                continue  # replaced a moment ago
            try:
                self._book(member, *receive(member.pipe))
            except GONE:
                self._replace(member)

    def _book(self, member: Member, kind: int, ticket: int, body: memoryview, apart: list[bytes]) -> None:
        if kind not in (ANSWER, STAYS, NO_MEMORY):
            self._give_up(bytes(body).decode(errors="replace"))
            return
        slot, _, _ = member.jobs.popleft()
        if ticket in self._jobs:
            if kind == ANSWER:
                self._answers[ticket] = unpack(body, apart, member.slots[slot][1])
            elif kind == STAYS:
                self._stays(ticket, bytes(body).decode(errors="replace"))
            else:
                self._answers[ticket] = MemoryError(bytes(body).decode(errors="replace"))
        member.free.append(slot)

    def _give_up(self, reason: str) -> None:
        """Forks cannot train here at all."""
        hint = "if it is for a GPU in sight: CUDA_VISIBLE_DEVICES='' hides it"
        log.warning("worker processes: forks cannot train here (%s; %s): inline is used", plain_text(reason), hint)
        self._alone = True
        self._end_all()

    def _end_all(self) -> None:
        end_all(self._members, os.getpid())
        self._ears = select.poll()
