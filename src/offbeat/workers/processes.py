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
from contextlib import suppress
from typing import Any

from offbeat.core.errors import plain_text
from offbeat.workers.forked_process import ANSWER, GONE, NO_MEMORY, STAYS, Train, receive
from offbeat.workers.job_blocks import jobs_of
from offbeat.workers.job_queue import Lost, Queue, cores, text_of
from offbeat.workers.process_members import Member, end_all, fork
from offbeat.workers.shared_memory_codec import unpack

log = logging.getLogger("offbeat")


class Processes(Queue[Member]):
    """Of jobs, or of blocks of up to `most` jobs each.

    `helps`: this process trains too while it waits, first what it waits for; others have one block at a time, so that
    there is something left for it. Who trains what then depends on time; what comes of it does not.
    """

    name, there = "processes", "one"
    causes = "there is too little memory, or native code fails"

    def __init__(self, train: Train, count: int | None = None, most: int = 1, helps: bool = False) -> None:
        super().__init__(train)
        self._count, self._most_jobs, self._helps = count or cores(), most, helps
        self._ears = select.poll()  # for all of them
        self._most = self._count  # of them; fewer where the system starts no more
        self._model = 0  # bytes of a model, of as many as make up a block
        self._known: list[Any] = []  # rules that processes inherit: of these any class will do
        self._numbers: dict[int, int] = {}
        self._end = weakref.finalize(self, end_all, self._members, os.getpid())

    def close(self) -> None:
        super().close()
        self._most = self._count

    # ------------------------------------------------------------ jobs

    def _obtain(self, ticket: int) -> None:
        if self._helps and ticket in self._due:
            del self._due[ticket]
            self._hand_out()  # the others, meanwhile
            self._compute(ticket)
        super()._obtain(ticket)

    def _hear_or_help(self) -> None:
        if self._helps and (other := self._most_urgent()) is not None:
            self._compute(other[1])
            self._hear(timeout=0.0)
        else:
            self._hear()

    def _send(self, member: Member, job: Any, due: float) -> bool:
        try:
            return member.take(job, due, self._numbers)
        except GONE:
            self._replace(member)
            raise Lost from None

    def _free_for(self, ticket: int) -> Member | None:
        member = self._least_busy()
        return None if member is None or not member.free or (self._helps and member.jobs) else member

    # ------------------------------------------------------------ processes

    def _start(self) -> None:
        """Rules that are known by now need not travel: most strategies have one for all jobs, of any class."""
        self._started = True
        jobs = [job for work in self._jobs.values() for job in jobs_of(work)]
        rules = {id(rule): rule for job in jobs if (rule := job.work.rule) is not None}
        self._known = list(rules.values())
        self._numbers = {id(rule): number for number, rule in enumerate(self._known)}
        self._model = self._most_jobs * max((job.base.nbytes for job in jobs), default=0)
        self._keep(self._count, self._model)

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
                self._take(member, *receive(member.pipe))  # what it still had to say
        if self._alone:
            return
        self._ears.unregister(member.pipe.fileno())
        how = member.end()
        self._members.remove(member)
        self._again(member, how)
        log.warning("a process of the worker %s; it is replaced, and its job repeated", how)

    def _hear(self, timeout: float | None = None) -> None:
        for number, _ in self._ears.poll(timeout):
            member = next((member for member in self._members if member.pipe.fileno() == number), None)
            if member is None:
                continue  # replaced a moment ago
            try:
                self._take(member, *receive(member.pipe))
            except GONE:
                self._replace(member)

    def _take(self, member: Member, kind: int, ticket: int, body: memoryview, apart: list[bytes]) -> None:
        if kind not in (ANSWER, STAYS, NO_MEMORY):
            self._give_up(text_of(body))
            return
        slot, _, _ = member.jobs.popleft()
        self._book(ticket, kind, body, lambda: unpack(body, apart, member.slots[slot][1]))
        member.free.append(slot)

    def _give_up(self, reason: str) -> None:
        """Forks cannot train here at all."""
        log.warning("worker processes: forks cannot train here (%s): inline is used", plain_text(reason))
        self._alone = True
        self._end_all()

    def _end_all(self) -> None:
        end_all(self._members, os.getpid())
        self._ears = select.poll()
