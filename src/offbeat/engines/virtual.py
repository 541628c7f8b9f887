"""The virtual-time engine: exact, deterministic, resumable.

In virtual time the order of arrivals depends on durations only, never on training results, so a job is computed when
its arrival is popped, together with whatever else its worker likes to compute along.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import Any

from torch import Tensor

from offbeat.core.errors import RunError
from offbeat.core.jobs import Job, Result
from offbeat.core.ledger import Ledger
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
)
from offbeat.core.surroundings import Surroundings
from offbeat.engines import resume
from offbeat.engines.checkpoint import Checkpoints
from offbeat.engines.clock import ARRIVE, EVALUATE, LOST, NOBODY, READY, TIMER, Clock
from offbeat.engines.gate import Gate, Verdict
from offbeat.engines.holdings import bytes_held
from offbeat.engines.judge import Judge, Survey
from offbeat.engines.progress import Outcome, Progress, one_thread, rare_collection
from offbeat.engines.trace import Trace
from offbeat.engines.traffic import Traffic
from offbeat.engines.until import Until
from offbeat.engines.workers import Worker

RESTLESS = 10_000  # timers at one instant after which it is taken to be endless
INTERRUPTED = "interrupted"
OVER = "nothing left to happen"
NOTHING: Mapping[str, Tensor] = {}


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
        survey: Survey | None = None,  # of the clients, each on its own examples: at the end, and
        survey_every: int = 0,  # at every so many evaluations
        gate: Gate | None = None,
        trace: Trace | None = None,
        checkpoints: Checkpoints | None = None,
        checkpoint_every: float = 30.0,  # host seconds
        timeout: float = 10.0,  # a ticket expires after this many times its expected duration
        watch: Callable[[VirtualEngine], None] | None = None,  # called now and then; it must not touch the run
    ) -> None:
        self.strategy, self.world, self.surroundings, self.worker = strategy, world, surroundings, worker
        self.until, self.every, self.timeout, self.watch = until, every, timeout, watch
        self.judge, self.survey, self.survey_every = Judge(evaluate, strategy), survey, survey_every
        self.gate = gate or Gate(world.layout, world.model.dtype)
        self.trace = trace or Trace()
        self.checkpoints, self.checkpoint_every = checkpoints, checkpoint_every
        self.interrupt = False
        self.state: Any = strategy.init(world)
        self.model = world.model  # of the last Commit: what is evaluated
        self.traffic = Traffic.of(strategy, world.model)
        self.clock, self.ledger, self.progress = Clock(), Ledger(world.clients, world.seed), Progress()
        self.memories: dict[int, Mapping[str, Tensor]] = {}  # what client rules keep between jobs
        self.verdicts: dict[int, Verdict] = {}  # computed before their arrival was due
        self.watched: dict[int, float] = {}  # idle clients -> when they leave, where that is known
        self._reason: str | None = None
        self._started = False
        self._fired = (-1.0, 0)  # timers fired at this instant

    # ------------------------------------------------------------ running

    def run(self) -> Outcome:
        with one_thread(), rare_collection():
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
        clients = sorted(self.world.clients)
        for client in clients:  # first who is away: nobody may be sent work before they come
            if (when := self.surroundings.next_available(client, 0.0)) > 0:
                self._come_back(client, when)
        for client in clients:
            if self.ledger.idle(client) and self._reason is None:
                self._ready(client)

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
            self._ask_everyone()
            self.trace.add(now, "stop", self.ledger.version, detail=self._reason)
        self.trace.flush()
        if self.watch is not None:
            self.watch(self)
        assert self._reason is not None
        return Outcome(self._reason, now, self.ledger.version, p.updates, self.model, dict(p.metrics), p.server_seconds, p.server_bytes)

    def _handle(self, now: float, kind: int, who: int, ticket: int) -> None:
        if kind == ARRIVE:
            self._arrive(who, ticket)
        elif kind == LOST:
            self._leave(who) if ticket == NOBODY else self._expire(ticket)
        elif kind == READY:
            self._back(who, ticket)
        elif kind == TIMER:
            self._fire(now, who)
        else:
            self._evaluate()
            if self.survey_every and self.progress.evaluations % self.survey_every == 0:
                self._ask_everyone()
            self.progress.evaluations += 1
            self.clock.push(self._grid_point(self.progress.evaluations), EVALUATE, NOBODY)

    def _grid_point(self, number: int) -> float:
        """The last one is the end itself, even where rounding would put it just beyond."""
        at, end = number * self.every, self.until.seconds
        return end if end is not None and abs(at - end) <= 1e-9 * end else at

    # ------------------------------------------------------------ events

    def _fire(self, now: float, order: int) -> None:
        key = self.clock.fired(order)
        self._fired = (now, self._fired[1] + 1 if self._fired[0] == now else 1)
        if self._fired[1] > RESTLESS:
            raise ProtocolError(f"timer {key!r} is set for now, {now}, again and again: this instant never ends")
        self.trace.add(now, "timer", self.ledger.version, detail=key)
        self._deliver(TimerFired(now, key))

    def _arrive(self, client: int, ticket: int) -> None:
        if ticket not in self.ledger.open:  # each ticket is consumed once
            self.trace.add(self.clock.now, "duplicate", self.ledger.version, client, ticket, size=self.traffic.wasted())
            return
        verdict = self._verdict(ticket)
        job = self.ledger.close(ticket)
        if isinstance(verdict, str):
            self._refuse(job, verdict)
            return
        now = self.clock.now
        self.progress.refusals.pop(client, None)
        size = self.traffic.up(client, verdict.local, verdict.extras)
        self.trace.add(now, "arrive", self.ledger.version, client, ticket, job.base_version, verdict.steps, verdict.num_examples, size)
        event = UpdateArrived(
            now, client, ticket, job.base_version, job.base, verdict.local, verdict.num_examples, verdict.steps, job.started, verdict.extras
        )
        self._deliver(event, job, verdict)
        if self.progress.updates == self.until.updates:
            self._reason = "updates"
        self._offer(client)
        if self.watch is not None and self.progress.updates % 64 == 0:
            self.watch(self)

    def _verdict(self, ticket: int) -> Verdict:
        if ticket not in self.verdicts:
            open_jobs = self.ledger.open
            pending = [job for number, job in open_jobs.items() if number not in self.verdicts] if self.worker.batches else ()
            answers = self.worker.compute(open_jobs[ticket], pending)
            for answer, verdict in zip(answers, self.gate.inspect(answers, open_jobs), strict=True):
                if answer.ticket in open_jobs:  # nobody's ticket is nobody's answer
                    self.verdicts.setdefault(answer.ticket, verdict)
        return self.verdicts.pop(ticket, "failed: the worker gave no answer")

    def _refuse(self, job: Job, reason: str) -> None:
        now, client, p = self.clock.now, job.client, self.progress
        failed = reason.startswith("failed: ")  # nothing was sent
        size = None if failed else self.traffic.wasted()
        self.trace.add(now, "refuse", self.ledger.version, client, job.ticket, job.base_version, size=size, detail=reason)
        if failed:
            p.failed(reason)
        self._in_vain(f"answers in a row were refused, the last for {reason}")
        wait = p.refused(client, lasted=now - job.started)
        self._lose(job, self.surroundings.next_available(client, now + wait))

    def _in_vain(self, what: str) -> None:
        """A job more that came to nothing: without an end in time the run might have none."""
        self.progress.barren += 1
        if self.until.seconds is None and self.progress.hopeless(len(self.ledger.clients)):
            self._reason = f"{self.progress.barren} {what}"

    def _expire(self, ticket: int) -> None:
        """A crash is noticed, or a client took too long: the ticket is dead."""
        self.verdicts.pop(ticket, None)
        job = self.ledger.close(ticket)
        now, client = self.clock.now, job.client
        trip = self.surroundings.trip(client, job.index, job.work, job.num_examples, job.started)
        self.trace.add(now, "lost", self.ledger.version, client, ticket, job.base_version, detail=trip.why)
        self._in_vain("jobs in a row were lost")
        if trip.crashes:
            self._lose(job, self.surroundings.next_available(client, now))
        else:  # it still trains; what it sends then comes too late
            self._lose(job, job.started + trip.duration, late=ticket)

    def _lose(self, job: Job, back: float, late: int = NOBODY) -> None:
        """Tell that the ticket is dead; the client is ready again when it is `back`."""
        now, client = self.clock.now, job.client
        if back > now:
            self._come_back(client, back, late)
        self._deliver(ClientLost(now, client, job.ticket))
        if self.ledger.idle(client) and self._reason is None:
            self._ready(client)

    def _offer(self, client: int) -> None:
        """A client that was heard and is still idle: ready again at once, or gone for a while."""
        if not self.ledger.idle(client) or self._reason is not None:
            return
        now = self.clock.now
        when = self.surroundings.next_available(client, now)
        if when <= now:
            self._ready(client)
        else:
            self._go(client, when)

    def _ready(self, client: int) -> None:
        """It can take work; if it gets none, the moment it leaves counts too."""
        self._deliver(ClientReady(self.clock.now, client, self._examples(client)))
        if self.ledger.idle(client):
            self._watch(client)

    def _watch(self, client: int) -> None:
        """One event a client at most, and none for those who stay: a million who are always there cost nothing."""
        if client not in self.watched and isfinite(at := self.surroundings.leaves(client, self.clock.now)):
            self.watched[client] = at
            self.clock.push(at, LOST, client)

    def _leave(self, client: int) -> None:
        """The time at which an idle client would leave; if it was sent work meanwhile, that job has its own fate."""
        del self.watched[client]
        if self.ledger.idle(client):
            when = self.surroundings.next_available(client, self.clock.now)
            if when > self.clock.now:
                self._go(client, when)
            else:
                self._watch(client)

    def _go(self, client: int, until: float) -> None:
        now = self.clock.now
        self.trace.add(now, "left", self.ledger.version, client)
        self._come_back(client, until)
        self._deliver(ClientLost(now, client, None))

    def _come_back(self, client: int, when: float, late: int = NOBODY) -> None:
        self.ledger.leave(client)
        if isfinite(when):
            self.clock.push(when, READY, client, late)

    def _back(self, client: int, late: int) -> None:
        now = self.clock.now
        if late != NOBODY:
            self.trace.add(now, "late", self.ledger.version, client, late, size=self.traffic.wasted())
        when = self.surroundings.next_available(client, now)
        if when > now:
            self._come_back(client, when)
            return
        self.ledger.join(client, self._examples(client))
        self.trace.add(now, "back", self.ledger.version, client)
        self._ready(client)

    def _evaluate(self) -> None:
        p, now, version = self.progress, self.clock.now, self.ledger.version
        p.metrics = self.judge(self.state, self.model, self.ledger.everyone())
        if not self.traffic.silent:  # alone, there is no server
            p.server_bytes = max(p.server_bytes, bytes_held(self.state))
        p.evaluated = (now, version)
        self.trace.metrics(now, version, p.updates, p.metrics)
        if self.until.target is not None and self._reason is None and self.until.target.reached(p.metrics):
            self._reason = "target"
        if self.watch is not None:
            self.watch(self)

    def _ask_everyone(self) -> None:
        """How good the model is for each client, on its own examples."""
        p, now, version = self.progress, self.clock.now, self.ledger.version
        if self.survey is None:
            return
        self.trace.set_facts(self.survey.facts)
        if p.surveyed == (now, version):
            return
        clients, groups = self.survey(self.judge.model_of(self.state, self.model))
        p.surveyed = (now, version)
        self.trace.clients(now, version, clients)
        self.trace.metrics(now, version, p.updates, groups)

    # ------------------------------------------------------------ actions

    def _deliver(self, event: Event, arrived: Job | None = None, result: Result | None = None) -> None:
        """Hand an event to the strategy and carry out its answer."""
        began = time.perf_counter()
        actions = self.strategy.on_event(self.state, event)
        self.progress.server_seconds += time.perf_counter() - began
        now, ledger = self.clock.now, self.ledger
        ledger.check(actions, self.model, arrived, now)
        if result is not None and Reject not in map(type, actions):
            self._accept(event, result)  # before the answer is carried out: it may send the client its next job
        for action in actions:
            match action:
                case Dispatch():
                    self._dispatch(action)
                case Commit():
                    ledger.version += 1
                    self.model = action.model
                    self.trace.commit(now, ledger.version)
                case SetTimer():
                    self.clock.set_timer(action.key, action.at)
                case CancelTimer():
                    self.clock.cancel_timer(action.key)
                case Reject():
                    self.trace.add(now, "reject", ledger.version, action.client, action.ticket, detail=action.reason)
                case Note():
                    self.trace.note(now, action.ticket, action.values)
                case Stop():
                    self._reason = action.reason
        if self.state.version != ledger.version:
            raise ProtocolError(f"state.version is {self.state.version} after {ledger.version} commits: a strategy counts them too")

    def _accept(self, event: Event, result: Result) -> None:
        assert isinstance(event, UpdateArrived)
        self.progress.updates += 1
        self.progress.barren = 0
        if result.memory:
            self.memories[event.client] = result.memory

    def _examples(self, client: int) -> int:
        return self.surroundings.num_examples(client, self.ledger.jobs.get(client, 0), self.clock.now)

    def _dispatch(self, action: Dispatch) -> None:
        now, client = self.clock.now, action.client
        num_examples = self._examples(client)
        job = self.ledger.dispatch(action, now, num_examples, self.memories.get(client, NOTHING))
        trip = self.surroundings.trip(client, job.index, action.work, num_examples, now)
        if not (trip.duration >= 0 and isfinite(trip.duration)):
            raise RunError(f"client {client} would take {trip.duration} s for its job {job.index}: durations are finite, 0 or more")
        self.trace.add(now, "dispatch", self.ledger.version, client, job.ticket, size=self.traffic.down(action))
        patience = self.timeout * trip.expected
        if trip.crashes or trip.duration > patience:
            self.clock.push(now + patience, LOST, client, job.ticket)
        else:
            self.clock.push(now + trip.duration, ARRIVE, client, job.ticket)
            if trip.again is not None:
                self.clock.push(now + trip.duration + trip.again, ARRIVE, client, job.ticket)

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
