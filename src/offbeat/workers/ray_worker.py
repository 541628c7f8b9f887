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
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayError
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from offbeat.core.errors import RunError, plain_text
from offbeat.workers.forked_process import ANSWER, NO_MEMORY, STAYS, Train, fields_of
from offbeat.workers.job_blocks import jobs_of
from offbeat.workers.job_queue import DEATHS, DEPTH, Queue, cores, text_of
from offbeat.workers.ray_actor import Actor, Greeting, Place, Settings
from offbeat.workers.ray_cluster import join
from offbeat.workers.ray_codec import as_block, pack, pack_trainer, unpack
from offbeat.workers.shared_memory_codec import Unsendable

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


class Ray(Queue[Member]):
    """`still`: tensors of the trainer that nobody writes to. `note` is told, once, that nodes are unlike this one."""

    name, there = "ray", "the cluster"
    causes = "there is too little memory, native code fails, or nodes are lost"

    def __init__(self, train: Train, address: str | None = None, still: Collection[Tensor] = ()) -> None:
        super().__init__(train)
        self._address, self._still = address, still
        self.note: Callable[[str], object] = lambda text: None
        self._placed: Any = WeakTensorKeyDictionary()  # tensor -> (its version, where it lies), while it is in use
        self._most = 0  # actors there may be
        self._trainer: Ref | None = None
        self._made: Any = None  # makes actors
        self._end: Callable[[], object] | None = None  # while it is connected

    # ------------------------------------------------------------ jobs

    def _hand_out(self, needed: int | None = None) -> None:
        while len(self._members) < min(self._most, len(self._jobs)):
            self._members.append(self._new())
        super()._hand_out(needed)

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

    def _send(self, member: Member, job: Any, due: float) -> bool:
        body, large = pack(fields_of(job), exact=True)
        try:
            answer = member.actor.train.remote(body, *map(self._place, large))
        except RayError as error:
            raise RunError(f"worker ray: the cluster takes no more jobs ({_first_line(error)})") from None
        member.jobs.append((answer, job.ticket, due))
        return True

    def _place(self, tensor: Tensor) -> Ref:
        """In the object store: of a model that many jobs are sent, once."""
        version, ref = self._placed.get(tensor, (None, None))
        if version != tensor._version:
            ref = ray.put(as_block(tensor))
            self._placed[tensor] = tensor._version, ref
        return ref

    # ------------------------------------------------------------ actors

    def _start(self) -> None:
        leave = join(self._address, cores())
        self._end = weakref.finalize(self, _end_all, self._members, leave, os.getpid())
        self._started = True
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
        jobs = [job for work in self._jobs.values() for job in jobs_of(work)]
        self._keep(self._most, max((job.base.nbytes for job in jobs), default=0))

    def _end_all(self) -> None:
        if self._end is not None:
            self._end()
        self._end = self._trainer = None
        self._placed.clear()

    def _new(self) -> Member:
        """Ray puts it on any node with a CPU free, as soon as there is one."""
        actor = self._made.remote()
        return Member(actor, actor.greet.remote(Settings.here(), self._trainer))

    def _hear(self, timeout: float | None = None) -> None:
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
                self._take(member, *said)

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

    def _take(self, member: Member, kind: int, body: bytes, blocks: Any) -> None:
        _, ticket, _ = member.jobs.popleft()
        if ticket in self._jobs and kind not in (ANSWER, STAYS, NO_MEMORY):
            raise RunError(f"worker ray: an actor cannot train: {plain_text(text_of(body))}")
        self._book(ticket, kind, body, lambda: unpack(body, blocks))

    def _replace(self, member: Member, how: str) -> None:
        """One that died: the job it was at may be why."""
        if member.greeting is not None and member.tries >= DEATHS:
            self._dismiss(member, how)
            return
        with suppress(RayError):
            ray.kill(member.actor)
        self._again(member, how)
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
