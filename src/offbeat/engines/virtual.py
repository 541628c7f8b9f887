"""The virtual-time engine: exact, deterministic, resumable.

In virtual time the order of arrivals depends on durations only, never on training results, so a job is computed when
its arrival is popped, together with whatever else its worker likes to compute along.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor

from offbeat.core.errors import RunError
from offbeat.core.jobs import Job
from offbeat.core.ledger import Ledger, Ticket
from offbeat.core.protocol import (
    CancelTimer,
    ClientLost,
    ClientReady,
    Commit,
    Dispatch,
    Event,
    Note,
    ProtocolError,
    Reject,
    SetTimer,
    Stop,
    Strategy,
    TimerFired,
    UpdateArrived,
    World,
)  # fmt: skip
from offbeat.core.surroundings import Surroundings
from offbeat.engines import resume
from offbeat.engines.checkpoint import Checkpoints
from offbeat.engines.clock import ARRIVE, EVALUATE, LOST, NOBODY, READY, TIMER, Clock
from offbeat.engines.gate import Gate, Verdict
from offbeat.engines.trace import Trace
from offbeat.engines.until import Until
from offbeat.engines.workers import Worker

log = logging.getLogger("offbeat")

PATIENCE = 3  # refusals in a row after which a client is offered work with back-off
HOPELESS = 10  # failed jobs and not one success: the fault is not the clients'
INTERRUPTED = "interrupted"
OVER = "nothing left to happen"


@dataclass(frozen=True, slots=True)
class Outcome:
    reason: str  # "seconds", "updates", "target", INTERRUPTED, OVER, or the strategy's own
    now: float
    version: int
    updates: int
    model: Tensor
    metrics: Mapping[str, float]
    server_seconds: float  # host time spent inside the strategy


@dataclass(slots=True)
class Progress:
    """What the engine remembers beside the clock and the ledger."""

    updates: int = 0
    failures: int = 0
    refusals: dict[int, int] = field(default_factory=dict)  # client -> refused in a row
    evaluations: int = 0
    evaluated: tuple[float, int] = (-1.0, -1)  # (time, version) of the last one
    metrics: dict[str, float] = field(default_factory=dict)
    server_seconds: float = 0.0


class VirtualEngine:
    """Runs one strategy in one world. `interrupt` may be set at any time: the run stops after the current event."""

    def __init__(
        self,
        strategy: Strategy,
        world: World,
        surroundings: Surroundings,
        worker: Worker,
        *,
        until: Until,
        evaluate: Callable[[Tensor], Mapping[str, float]] = lambda model: {},
        every: float = inf,  # virtual seconds between evaluations
        gate: Gate | None = None,
        trace: Trace | None = None,
        checkpoints: Checkpoints | None = None,
        checkpoint_every: float = 30.0,  # host seconds
        timeout: float = 10.0,  # a ticket expires after this many times its expected duration
        watch: Callable[[VirtualEngine], None] | None = None,  # called now and then; it must not touch the run
    ) -> None:
        self.strategy, self.world, self.surroundings, self.worker = strategy, world, surroundings, worker
        self.until, self.evaluate, self.every, self.timeout, self.watch = until, evaluate, every, timeout, watch
        self.gate = gate or Gate(world.layout, world.model.dtype)
        self.trace = trace or Trace()
        self.checkpoints, self.checkpoint_every = checkpoints, checkpoint_every
        self.interrupt = False
        self.state: Any = strategy.init(world)
        self.model = world.model  # of the last Commit: what is evaluated
        self.clock, self.ledger, self.progress = Clock(), Ledger(world.clients), Progress()
        self.memories: dict[int, Mapping[str, Tensor]] = {}  # what client rules keep between jobs
        self.jobs: dict[int, Job] = {}  # dispatched and not computed
        self.verdicts: dict[int, Verdict] = {}  # computed before their arrival was due
        self._reason: str | None = None
        self._started = False
        self._model_bytes = world.model.nbytes

    # ------------------------------------------------------------ running

    def run(self) -> Outcome:
        with _one_thread(), _rare_collection():
            if not self._started:
                self._start()
            last = time.monotonic()
            horizon = self.until.seconds if self.until.seconds is not None else inf
            while self._reason is None:
                due = self.clock.pop(horizon)
                if due is None:
                    self._run_out(horizon)
                    break
                self._handle(*due)
                if self._reason is not None:
                    break  # a checkpoint of an ended run would be resumed past its end
                if self.interrupt:
                    self._reason = INTERRUPTED
                elif self.checkpoints is not None and time.monotonic() - last >= self.checkpoint_every:
                    self.save()
                    last = time.monotonic()
            return self._finish()

    def _start(self) -> None:
        """Everyone who is there is ready at time 0, in order of id; the rest when they come."""
        self._started = True
        self.clock.push(0.0, EVALUATE, NOBODY)
        for client in sorted(self.world.clients):
            when = self.surroundings.next_available(client, 0.0)
            if when <= 0.0:
                if self.ledger.idle(client):
                    self._deliver(ClientReady(0.0, client, self.surroundings.num_examples(client, 0.0)))
            else:
                self._come_back(client, when)

    def _run_out(self, horizon: float) -> None:
        self._reason = OVER if self.clock.over else "seconds"
        if self._reason == "seconds":
            self.clock.now = horizon

    def _finish(self) -> Outcome:
        p, now = self.progress, self.clock.now
        if self._reason == INTERRUPTED:
            self.save()
        else:
            if p.evaluated != (now, self.ledger.version):
                self._evaluate()
            self.trace.add(now, "stop", self.ledger.version, detail=self._reason)
        self.trace.flush()
        if self.watch is not None:
            self.watch(self)
        assert self._reason is not None
        return Outcome(self._reason, now, self.ledger.version, p.updates, self.model, dict(p.metrics), p.server_seconds)

    def _handle(self, now: float, kind: int, who: int, ticket: int) -> None:
        if kind == ARRIVE:
            self._arrive(ticket)
        elif kind == LOST:
            self._expire(ticket)
        elif kind == READY:
            self._back(who, ticket)
        elif kind == TIMER:
            key = self.clock.fired(who)
            self.trace.add(now, "timer", self.ledger.version, detail=key)
            self._deliver(TimerFired(now, key))
        else:
            self._evaluate()
            self.progress.evaluations += 1
            self.clock.push(self.progress.evaluations * self.every, EVALUATE, NOBODY)

    # ------------------------------------------------------------ events

    def _arrive(self, number: int) -> None:
        verdict = self._verdict(number)
        ticket = self.ledger.close(number)
        if isinstance(verdict, str):
            self._refuse(ticket, verdict)
            return
        now, client, version = self.clock.now, ticket.client, self.ledger.version
        self.progress.refusals.pop(client, None)
        size = self._model_bytes + _extras_bytes(verdict.extras)
        self.trace.add(now, "arrive", version, client, number, ticket.base_version, verdict.steps, verdict.num_examples, size)
        event = UpdateArrived(
            now, client, number, ticket.base_version, ticket.base, verdict.local, verdict.num_examples, verdict.steps, ticket.started,
            verdict.extras,
        )  # fmt: skip
        rejected = self._deliver(event, number)
        if not rejected:
            self.progress.updates += 1
            if verdict.memory:
                self.memories[client] = verdict.memory
            if self.progress.updates == self.until.updates:
                self._reason = "updates"
        self._offer(client)
        if self.watch is not None and self.progress.updates % 64 == 0:
            self.watch(self)

    def _verdict(self, number: int) -> Verdict:
        if number not in self.verdicts:
            answers = self.worker.compute(self.jobs[number], self.jobs.values())
            for answer, verdict in zip(answers, self.gate.inspect(answers, self.ledger.open), strict=True):
                del self.jobs[answer.ticket]
                self.verdicts[answer.ticket] = verdict
        return self.verdicts.pop(number)

    def _refuse(self, ticket: Ticket, reason: str) -> None:
        now, client, p = self.clock.now, ticket.client, self.progress
        self.trace.add(now, "refuse", self.ledger.version, client, ticket.number, ticket.base_version, detail=reason)
        if reason.startswith("failed: "):
            p.failures += 1
            if p.failures >= HOPELESS and p.updates == 0:
                raise RunError(f"the first {HOPELESS} local trainings all {reason}")
        p.refusals[client] = p.refusals.get(client, 0) + 1
        self._deliver(ClientLost(now, client, ticket.number))
        if p.refusals[client] < PATIENCE:
            self._offer(client)
        elif self.ledger.idle(client):
            wait = (now - ticket.started) * 2 ** min(p.refusals[client] - PATIENCE, 6)
            self._come_back(client, self.surroundings.next_available(client, now + wait))

    def _expire(self, number: int) -> None:
        """A crash is noticed, or a client took too long: the ticket is dead."""
        self.verdicts.pop(number, None)
        self.jobs.pop(number, None)
        ticket = self.ledger.close(number)
        now, client = self.clock.now, ticket.client
        self.trace.add(now, "lost", self.ledger.version, client, number, ticket.base_version)
        trip = self.surroundings.trip(client, ticket.index, ticket.work, ticket.num_examples, ticket.started)
        if not trip.crashes:  # it still trains; what it sends then comes too late
            self._come_back(client, ticket.started + trip.duration, number)
        self._deliver(ClientLost(now, client, number))
        if trip.crashes:
            self._offer(client)

    def _offer(self, client: int) -> None:
        """A client that was heard or lost and is still idle: ready again at once, or gone for a while."""
        if not self.ledger.idle(client) or self._reason is not None:
            return
        now = self.clock.now
        when = self.surroundings.next_available(client, now)
        if when <= now:
            self._deliver(ClientReady(now, client, self.surroundings.num_examples(client, now)))
        else:
            self.trace.add(now, "left", self.ledger.version, client)
            self._come_back(client, when)
            self._deliver(ClientLost(now, client, None))

    def _come_back(self, client: int, when: float, late: int = NOBODY) -> None:
        self.ledger.leave(client)
        if isfinite(when):
            self.clock.push(when, READY, client, late)

    def _back(self, client: int, late: int) -> None:
        now = self.clock.now
        if late != NOBODY:
            self.trace.add(now, "late", self.ledger.version, client, late, size=self._model_bytes)
        when = self.surroundings.next_available(client, now)
        if when > now:
            self._come_back(client, when)
            return
        num_examples = self.surroundings.num_examples(client, now)
        self.ledger.join(client, num_examples)
        self.trace.add(now, "back", self.ledger.version, client)
        self._deliver(ClientReady(now, client, num_examples))

    def _evaluate(self) -> None:
        p, now, version = self.progress, self.clock.now, self.ledger.version
        if p.evaluated[1] != version:
            p.metrics = dict(self.evaluate(self.model))
        p.evaluated = (now, version)
        self.trace.metrics(now, version, p.updates, p.metrics)
        if self.until.target is not None and self._reason is None and self.until.target.reached(p.metrics):
            self._reason = "target"
        if self.watch is not None:
            self.watch(self)

    # ------------------------------------------------------------ actions

    def _deliver(self, event: Event, arrived: int | None = None) -> bool:
        """Hand an event to the strategy and carry out its answer; True if it rejected the update."""
        began = time.perf_counter()
        actions = self.strategy.on_event(self.state, event)
        self.progress.server_seconds += time.perf_counter() - began
        if not actions:
            return False
        now, ledger = self.clock.now, self.ledger
        ledger.check(actions, self.world.layout.size, arrived, now)
        rejected = False
        for action in actions:
            match action:
                case Dispatch():
                    self._dispatch(action)
                case Commit():
                    ledger.version += 1
                    self.model = action.model
                    self.trace.add(now, "commit", ledger.version)
                case SetTimer():
                    self.clock.set_timer(action.key, action.at)
                case CancelTimer():
                    self.clock.cancel_timer(action.key)
                case Reject():
                    rejected = True
                    self.trace.add(now, "reject", ledger.version, action.client, action.ticket, detail=action.reason)
                case Note():
                    self.trace.note(now, action.ticket, action.values)
                case Stop():
                    self._reason = action.reason
        if self.state.version != ledger.version:
            raise ProtocolError(f"state.version is {self.state.version} after {ledger.version} commits: a strategy counts them too")
        return rejected

    def _dispatch(self, action: Dispatch) -> None:
        now, client = self.clock.now, action.client
        num_examples = self.surroundings.num_examples(client, now)
        ticket = self.ledger.dispatch(action, now, num_examples)
        trip = self.surroundings.trip(client, ticket.index, action.work, num_examples, now)
        if not (trip.duration >= 0 and isfinite(trip.duration)):
            raise RunError(f"client {client} would take {trip.duration} s for its job {ticket.index}: durations are finite, 0 or more")
        size = self._model_bytes + _extras_bytes(action.work.extras)
        self.trace.add(now, "dispatch", self.ledger.version, client, ticket.number, size=size)
        self.jobs[ticket.number] = self.job_of(ticket)
        patience = self.timeout * trip.expected
        if trip.crashes or trip.duration > patience:
            self.clock.push(now + patience, LOST, client, ticket.number)
        else:
            self.clock.push(now + trip.duration, ARRIVE, client, ticket.number)

    def job_of(self, ticket: Ticket) -> Job:
        return Job(
            ticket.number, ticket.client, ticket.index, ticket.base, ticket.base_version, ticket.work, ticket.num_examples,
            self.memories.get(ticket.client, {}), self.world.seed,
        )  # fmt: skip

    # ------------------------------------------------------------ checkpoints

    def save(self) -> None:
        """Write a checkpoint of this moment between two events."""
        if self.checkpoints is not None:
            self.trace.flush()  # the trace must reach at least as far as the checkpoint
            self.checkpoints.save(lambda put: resume.tree_of(self, put))

    def restore(self) -> None:
        """Go back to the newest checkpoint; without one the run starts over."""
        if self.checkpoints is None or not self.checkpoints.exist():
            self.trace.cut(0)
            return
        tree, get = self.checkpoints.load()
        resume.fill(self, tree, get)
        self.trace.cut(tree["trace"])
        self._started = True


def _extras_bytes(extras: Mapping[str, Tensor]) -> int:
    return sum(t.nbytes for t in extras.values()) if extras else 0


@contextmanager
def _one_thread() -> Iterator[None]:
    """Every job on one thread: the same bits whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _rare_collection() -> Iterator[None]:
    """Nothing in the loop makes reference cycles, but its many small objects would set the collector off all the time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, before[1], before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)
