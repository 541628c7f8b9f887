"""A worker on a Ray cluster: the bits of inline, on as many machines as there are.

Actors are made from when the first result is asked for, no more than there are jobs for, up to one a CPU of the
cluster. The trainer with its data is put into the object store once, and so is every model that jobs are sent: each
node fetches it once, whatever number of jobs it has of it. Jobs are started ahead of their due time, in its order. An
actor that dies, or whose node does, is replaced and its jobs are repeated, which is safe because jobs are pure.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayError
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from offbeat.core.errors import RunError, plain_text
from offbeat.core.jobs import Job
from offbeat.engines.workers import Answer
from offbeat.engines.workers.actors import Actor, Greeting, Place, Settings
from offbeat.engines.workers.cluster import join
from offbeat.engines.workers.forked import ANSWER, NO_MEMORY, STAYS, Train, fields_of
from offbeat.engines.workers.inline import computed
from offbeat.engines.workers.members import DEPTH
from offbeat.engines.workers.parcels import Unsendable
from offbeat.engines.workers.processes import AHEAD, DEATHS, KEPT, cores
from offbeat.engines.workers.shipments import as_block, pack, pack_trainer, unpack

log = logging.getLogger("offbeat")

MOST = 1024  # actors
BUSY = 60.0  # seconds without any actor, until it is said that the cluster has no CPU free
Ref = Any  # ray.ObjectRef, which is generic for type checkers only


@dataclass(eq=False)
class Member:
    """An actor, as the run sees it."""

    actor: Any
    greeting: Ref | None  # until it has loaded the trainer
    jobs: deque[tuple[Ref, int, float]] = field(default_factory=deque)  # (answer, ticket, due), as they were sent
    node: str = "?"
    pid: int = 0  # there
    tries: int = 1  # actors that have been in its place before any loaded the trainer

    def load(self) -> int:
        return len(self.jobs)


class Ray:
    """`still`: tensors of the trainer that nobody writes to. `note` is told, once, that nodes are unlike this one."""

    def __init__(self, train: Train, address: str | None = None, still: Collection[Tensor] = ()) -> None:
        self._train, self._address, self._still = train, address, still
        self.note: Callable[[str], object] = lambda text: None
        self._jobs: dict[int, Job] = {}  # submitted, not yet answered
        self._due: dict[int, float] = {}  # of those that are nowhere yet,
        self._order: list[tuple[float, int]] = []  # a heap of them, and of some that are gone
        self._here: set[int] = set()  # those that cannot travel: they are trained in this process
        self._answers: dict[int, Answer | MemoryError] = {}  # that nobody asked for yet
        self._deaths: dict[int, int] = {}  # of actors that had it first; those with an entry are sent alone
        self._members: list[Member] = []
        self._placed: Any = WeakTensorKeyDictionary()  # tensor -> (its version, where it lies), while it is in use
        self._most = self._ahead = 0  # actors there may be; results that may wait
        self._trainer: Ref | None = None
        self._made: Any = None  # makes actors
        self._said: set[str] = set()
        self._end: Callable[[], object] | None = None  # while it is connected

    # ------------------------------------------------------------ what a worker does

    def submit(self, job: Job, due: float) -> None:
        self._jobs[job.ticket] = job
        self._wait_for(job.ticket, due)
        if self._end is not None:
            self._hear(timeout=0.0)
            self._hand_out()

    def cancel(self, ticket: int) -> None:
        for held in (self._jobs, self._due, self._answers, self._deaths):
            held.pop(ticket, None)
        self._here.discard(ticket)

    def collect(self, tickets: Collection[int]) -> list[Answer]:
        for ticket in tickets:
            if ticket in self._due:
                heappush(self._order, (-inf, ticket))  # whatever it was to be: now is when it is needed
        if self._end is None:
            self._start()
        return [self._answer(ticket) for ticket in tickets]

    def close(self) -> None:
        if self._end is not None:
            self._end()
        self._end = self._trainer = None
        self._placed.clear()
        for held in (self._jobs, self._due, self._order, self._here, self._answers, self._deaths):
            held.clear()

    # ------------------------------------------------------------ jobs

    def _wait_for(self, ticket: int, due: float) -> None:
        self._due[ticket] = due
        heappush(self._order, (due, ticket))

    def _answer(self, ticket: int) -> Answer:
        if ticket not in self._jobs:
            raise KeyError(ticket)
        self._hear(timeout=0.0)
        while ticket not in self._answers:
            self._hand_out(ticket)
            if ticket in self._here:
                self._due.pop(ticket, None)
                self._answers[ticket] = computed(self._train, self._jobs[ticket])
            else:
                self._hear()
        answer = self._answers.pop(ticket)
        self.cancel(ticket)
        self._hand_out()
        if isinstance(answer, MemoryError):
            raise answer
        return answer

    def _hand_out(self, needed: int | None = None) -> None:
        """To every actor as many jobs as keep it busy, the most urgent first."""
        while len(self._members) < min(self._most, len(self._jobs)):
            self._members.append(self._new())
        while self._order:
            due, ticket = self._order[0]
            if ticket not in self._due:
                heappop(self._order)  # it was sent or cancelled meanwhile
                continue
            under_way = sum(map(Member.load, self._members))
            if ticket != needed and len(self._answers) + under_way >= self._ahead:
                return
            member = self._free_for(ticket)
            if member is None:
                return
            try:
                member.jobs.append((self._sent(member, self._jobs[ticket]), ticket, due))
            except Unsendable as reason:
                self._stays(ticket, str(reason))
            heappop(self._order)
            self._due.pop(ticket, None)

    def _free_for(self, ticket: int) -> Member | None:
        """The least busy. With a job that was in an actor that died an actor has nothing else: an answer that was on
        its way is lost too, so that only of a job that is alone it is certain that it was the one.
        """
        room = 1 if ticket in self._deaths else DEPTH
        free = (
            member
            for member in self._members
            if member.greeting is None
            and member.load() < room
            and not any(other in self._deaths for _, other, _ in member.jobs)
        )
        return min(free, key=Member.load, default=None)

    def _sent(self, member: Member, job: Job) -> Ref:
        body, large = pack(fields_of(job), exact=True)
        try:
            return member.actor.train.remote(body, *map(self._place, large))
        except RayError as error:
            raise RunError(f"worker ray: the cluster takes no more jobs ({_first_line(error)})") from None

    def _place(self, tensor: Tensor) -> Ref:
        """In the object store: of a model that many jobs are sent, once."""
        version, ref = self._placed.get(tensor, (None, None))
        if version != tensor._version:
            ref = ray.put(as_block(tensor))
            self._placed[tensor] = tensor._version, ref
        return ref

    def _stays(self, ticket: int, reason: str) -> None:
        self._here.add(ticket)
        self._say_once(f"worker ray: a job cannot be sent to the cluster ({plain_text(reason)}): trained in this one")

    def _say_once(self, line: str) -> None:
        key = line.partition("(")[0]
        if key not in self._said:
            self._said.add(key)
            log.warning("%s", line)

    # ------------------------------------------------------------ actors

    def _start(self) -> None:
        leave = join(self._address, cores())
        self._end = weakref.finalize(self, _end_all, self._members, leave, os.getpid())
        self._most = min(MOST, int(ray.cluster_resources().get("CPU", 0)))
        if self._most < 1:
            raise RunError("worker ray: the cluster has no CPU to train on")
        self._made = ray.remote(num_cpus=1, max_restarts=0)(Actor)
        try:
            self._trainer = ray.put(pack_trainer(self._train, self._still))
        except Unsendable as reason:
            why = f"model, data or loss cannot be sent to other processes ({plain_text(reason)})"
            raise RunError(f"worker ray: {why}; --worker processes needs not send them") from None
        except RayError as error:
            raise RunError(f"worker ray: the object store has no room for the data ({_first_line(error)})") from None
        model = max((job.base.nbytes for job in self._jobs.values()), default=0)
        least, most = 2 * DEPTH * self._most, AHEAD * self._most
        self._ahead = max(least, min(most, KEPT // max(1, model)))

    def _new(self) -> Member:
        """Ray puts it on any node with a CPU free, as soon as there is one."""
        actor = self._made.remote()
        return Member(actor, actor.greet.remote(Settings.here(), self._trainer))

    def _hear(self, timeout: float | None = None) -> None:
        """Answers that are there; with no timeout, until there is one."""
        waiting = {member.greeting or member.jobs[0][0]: member for member in self._members if _at_work(member)}
        if not waiting:
            return
        ready = self._ready(list(waiting), timeout)
        for ref in ready:
            member = waiting[ref]
            try:
                said = ray.get(ref)
            except RayError as error:
                self._replace(member, _how(error))
                continue
            if member.greeting is not None:
                self._welcome(member, said)
            else:
                self._book(member, *said)

    def _ready(self, refs: list[Ref], timeout: float | None) -> list[Ref]:
        try:
            while True:
                limit, count = (BUSY, 1) if timeout is None else (timeout, len(refs))
                ready, _ = ray.wait(refs, num_returns=count, timeout=limit)
                if ready or timeout is not None:
                    return list(ready)
                if all(member.greeting is not None for member in self._members):
                    self._say_once("worker ray: no CPU of the cluster has been free for a minute: waiting for one")
        except RayError as error:
            raise RunError(f"worker ray: the cluster is lost ({_first_line(error)})") from None

    def _welcome(self, member: Member, greeting: Greeting) -> None:
        if greeting.place is None:
            self._dismiss(member, f"{greeting.unfit}, on node {greeting.node}")
            return
        member.greeting, member.node, member.pid = None, greeting.node, greeting.pid
        difference = Place.here().difference(greeting.place)
        if difference is not None and "unlike" not in self._said:
            self._said.add("unlike")
            told = f"node {greeting.node} has {difference}: bits may differ from inline's"
            log.warning("worker ray: %s", plain_text(told))
            self.note(plain_text(told))

    def _book(self, member: Member, kind: int, body: bytes, blocks: Any) -> None:
        _, ticket, _ = member.jobs.popleft()
        if ticket not in self._jobs:
            return
        if kind == ANSWER:
            self._answers[ticket] = unpack(body, blocks)
        elif kind == STAYS:
            self._stays(ticket, body.decode(errors="replace"))
        elif kind == NO_MEMORY:
            self._answers[ticket] = MemoryError(body.decode(errors="replace"))
        else:
            raise RunError(f"worker ray: an actor cannot train: {plain_text(body.decode(errors='replace'))}")

    def _replace(self, member: Member, how: str) -> None:
        """One that died: the job it was at may be why."""
        if member.greeting is not None and member.tries >= DEATHS:
            self._dismiss(member, how)
            return
        with suppress(RayError):
            ray.kill(member.actor)
        for number, (_, ticket, due) in enumerate(member.jobs):
            if ticket not in self._jobs:
                continue  # cancelled meanwhile
            self._deaths[ticket] = self._deaths.get(ticket, 0) + (number == 0)
            self._give_up_on(self._jobs[ticket], how)
            self._wait_for(ticket, due)
        again = self._new()
        again.tries = 1 if member.greeting is None else member.tries + 1
        self._members[self._members.index(member)] = again
        log.warning("a process of the worker on node %s %s; it is replaced, and its job repeated", member.node, how)

    def _dismiss(self, member: Member, why: str) -> None:
        """Its place cannot train. The others go on, as long as there is one."""
        with suppress(RayError):
            ray.kill(member.actor)
        self._members.remove(member)
        self._most -= 1
        self._say_once(f"worker ray: a node cannot train ({plain_text(why)}): it is left out")
        if not self._members and self._most < 1:
            needs = "every node needs offbeat, this torch and what the model imports"
            raise RunError(f"worker ray: no node of the cluster can train, the last one: {plain_text(why)}; {needs}")

    def _give_up_on(self, job: Job, how: str) -> None:
        if self._deaths[job.ticket] >= DEATHS:
            raise RunError(
                f"job {job.index} of client {job.client} ended {DEATHS} processes, the last one {how}: there is too "
                "little memory, native code fails, or nodes are lost; with --worker inline it would end the run itself"
            )


def _at_work(member: Member) -> bool:
    return member.greeting is not None or bool(member.jobs)


def _end_all(members: list[Member], leave: Callable[[], None], owner: int) -> None:
    """At once: they hold nothing. Not those of another process, of which this may be a fork."""
    while members and os.getpid() == owner:
        with suppress(Exception):
            ray.kill(members.pop().actor)
    leave()


def _how(error: RayError) -> str:
    """In words, how an actor ended."""
    if isinstance(error, OutOfMemoryError):
        return "was ended for want of memory"
    if isinstance(error, ActorUnavailableError):  # what is heard first of a node that is gone
        return "cannot be reached any more"
    text = str(error)
    if "node has died" in text or "node was terminated" in text or "node failure" in text:
        return "was lost with its node"
    return "died" if "worker process has died" in text else f"died ({_first_line(error)})"


def _first_line(error: BaseException) -> str:
    return plain_text(next((line.strip() for line in str(error).splitlines() if line.strip()), ""), 200)
