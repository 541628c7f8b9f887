"""Jobs that wait for somebody else to train them: the most urgent first, ahead of their time, again after a death.

Who trains, how jobs get there and answers come back, and what a death looks like is for those who inherit it.
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

from offbeat.core.errors import RunError, plain_text
from offbeat.core.jobs import Job
from offbeat.workers.forked_process import ANSWER, STAYS, Train
from offbeat.workers.inline import computed
from offbeat.workers.job_blocks import Block, in_words
from offbeat.workers.shared_memory_codec import Unsendable

log = logging.getLogger("offbeat")

DEPTH = 2  # jobs a member has: one it trains, and one to go on with at once
AHEAD = 16  # results for each member that may be computed though nobody asked for them yet,
KEPT = 1 << 29  # and the bytes of all of them, about
DEATHS = 3  # of members over one job: then it is the job


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


class Trains(Protocol):
    """Somebody who trains, as the run sees it."""

    @property
    def jobs(self) -> deque[tuple[Any, int, float]]:
        """(how it was sent, ticket, due), in the order they were sent."""
        ...


class Lost(Exception):
    """Whoever was to have a job has died, and was replaced: it is somebody else's."""


Member = TypeVar("Member", bound=Trains)


class Queue(ABC, Generic[Member]):
    """Of jobs, or of blocks of them: then an answer is what `train` makes of a block."""

    name: ClassVar[str]  # of the worker
    there: ClassVar[str]  # where jobs are sent, in words
    causes: ClassVar[str]  # of deaths, in words

    def __init__(self, train: Train) -> None:
        self._train = train
        self._jobs: dict[int, Job | Block] = {}  # submitted, not yet answered
        self._due: dict[int, float] = {}  # of those that are nowhere yet,
        self._order: list[tuple[float, int]] = []  # a heap of them, and of some that are gone
        self._here: set[int] = set()  # those that cannot travel: they are trained in this process
        self._answers: dict[int, Any] = {}  # that nobody asked for yet
        self._deaths: dict[int, int] = {}  # of members who had it first; it has an entry once it was in any that died
        self._members: list[Member] = []
        self._started, self._alone = False, False  # alone: nobody else can train, so this process does
        self._ahead = 0  # results that may wait
        self._said: set[str] = set()

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
        self._started, self._alone = False, False

    # ------------------------------------------------------------ for those who inherit it

    @abstractmethod
    def _start(self) -> None:
        """The first result is asked for; `_started` from here on."""

    @abstractmethod
    def _end_all(self) -> None:
        """Every member, at once: they hold nothing."""

    @abstractmethod
    def _free_for(self, ticket: int) -> Member | None:
        """Who is to have this job now, if anybody."""

    @abstractmethod
    def _send(self, member: Member, job: Any, due: float) -> bool:
        """And put it among its jobs. False if it does not go now; Unsendable if it never does; Lost."""

    @abstractmethod
    def _hear(self, timeout: float | None = None) -> None:
        """Answers that are there; with no timeout, until there is one."""

    # ------------------------------------------------------------ jobs

    def _wait_for(self, ticket: int, due: float) -> None:
        self._due[ticket] = due
        heappush(self._order, (due, ticket))

    def _answer(self, ticket: int) -> Any:
        if ticket not in self._jobs:
            raise KeyError(ticket)
        self._hear(timeout=0.0)
        self._obtain(ticket)
        answer = self._answers.pop(ticket)
        self.cancel(ticket)
        self._hand_out()
        if isinstance(answer, MemoryError):
            raise answer
        return answer

    def _obtain(self, ticket: int) -> None:
        """Until its answer is there."""
        while ticket not in self._answers:
            self._hand_out(ticket)
            if ticket in self._here or self._alone:
                self._compute(ticket)
            else:
                self._hear_or_help()

    def _hear_or_help(self) -> None:
        self._hear()

    def _compute(self, ticket: int) -> None:
        """In this process."""
        self._due.pop(ticket, None)
        self._answers[ticket] = computed(self._train, self._jobs[ticket])

    def _most_urgent(self) -> tuple[float, int] | None:
        """Of those that nobody is at: due when, and its ticket."""
        while self._order and self._order[0][1] not in self._due:
            heappop(self._order)  # it was sent or cancelled meanwhile
        return self._order[0] if self._order else None

    def _hand_out(self, needed: int | None = None) -> None:
        """To every member as many jobs as keep it busy, the most urgent first."""
        while not self._alone and (first := self._most_urgent()) is not None:
            due, ticket = first
            under_way = sum(len(member.jobs) for member in self._members)
            if ticket != needed and len(self._answers) + under_way >= self._ahead:
                return
            member = self._free_for(ticket)
            if member is None:
                return
            try:
                if not self._send(member, self._jobs[ticket], due):
                    return
            except Unsendable as reason:
                self._stays(ticket, str(reason))
            except Lost:
                continue
            heappop(self._order)
            self._due.pop(ticket, None)

    def _keep(self, members: int, model: int) -> None:
        """So many results of so many bytes may wait that so many members are never idle."""
        self._ahead = max(2 * DEPTH * members, min(AHEAD * members, KEPT // max(1, model)))

    def _book(self, ticket: int, kind: int, body: bytes | memoryview, unpacked: Callable[[], Any]) -> None:
        """What was said of a job, if anybody still waits for it."""
        if ticket not in self._jobs:
            return
        if kind == ANSWER:
            self._answers[ticket] = unpacked()
        elif kind == STAYS:
            self._stays(ticket, text_of(body))
        else:
            self._answers[ticket] = MemoryError(text_of(body))

    def _stays(self, ticket: int, reason: str) -> None:
        self._here.add(ticket)
        self._say_once(
            f"worker {self.name}: a job cannot be sent to {self.there} ({plain_text(reason)}): trained in this one"
        )

    def _again(self, member: Member, how: str) -> None:
        """The jobs of one that died. It was at the first, which may be why."""
        for number, (_, ticket, due) in enumerate(member.jobs):
            if ticket not in self._jobs:
                continue  # cancelled meanwhile
            self._deaths[ticket] = self._deaths.get(ticket, 0) + (number == 0)
            if self._deaths[ticket] >= DEATHS:
                raise RunError(
                    f"{in_words(self._jobs[ticket])} ended {DEATHS} processes, the last one {how}: {self.causes}; "
                    "with --worker inline it would end the run itself"
                )
            self._wait_for(ticket, due)

    def _say_once(self, line: str) -> None:
        key = line.partition("(")[0]
        if key not in self._said:
            self._said.add(key)
            log.warning("%s", line)


def text_of(body: bytes | memoryview) -> str:
    return bytes(body).decode(errors="replace")
