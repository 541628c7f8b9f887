"""The virtual-time engine: exact, deterministic, resumable.

In virtual time the order of arrivals depends on durations only, never on training results, so a job is computed when
its arrival is popped, together with whatever else its worker likes to compute along.

A run's state is all in `VirtualEngine`; what is done with it stands by subject: here the loop and how jobs end, in
`presence` who can be reached, in `exchange` what the strategy is told and answers, in `grid` evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf, isfinite
from typing import Any

from torch import Tensor

from offbeat.core.jobs import STATISTICS, Job, Result
from offbeat.core.ledger import Ledger
from offbeat.core.protocol import ProtocolError, Strategy, TimerFired, UpdateArrived, World
from offbeat.core.surroundings import Surroundings
from offbeat.core.threads import one_thread
from offbeat.engines import exchange, finite, grid, presence, resume
from offbeat.engines.cadence import Cadence
from offbeat.engines.checkpoint import Checkpoints
from offbeat.engines.clock import ARRIVE, LOST, NOBODY, READY, TIMER, Clock
from offbeat.engines.gate import Gate, Verdict, ticket_of
from offbeat.engines.judge import Judge, Own, Survey
from offbeat.engines.progress import Outcome, Progress, rare_collection
from offbeat.engines.trace import Trace
from offbeat.engines.traffic import Traffic
from offbeat.engines.until import Until
from offbeat.engines.workers import Worker

RESTLESS = 10_000  # timers at one instant after which it is taken to be endless
INTERRUPTED = "interrupted"
OVER = "nothing left to happen"


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
        own: Own | None = None,  # evaluates clients on their own test examples instead, and gives the mean
        every: float = inf,  # virtual seconds between evaluations
        survey: Survey | None = None,  # of the clients, each on its own examples: at the end, and
        survey_every: int = 0,  # at every so many evaluations
        gate: Gate | None = None,
        trace: Trace | None = None,
        checkpoints: Checkpoints | None = None,
        checkpoint_every: float = 30.0,  # host seconds at least; 0: after every event
        timeout: float = 10.0,  # a ticket expires after this many times its expected duration
        watch: Callable[[VirtualEngine], None] | None = None,  # called now and then; it must not touch the run
    ) -> None:
        self.strategy, self.world, self.surroundings, self.worker = strategy, world, surroundings, worker
        self.until, self.every, self.timeout, self.watch = until, every, timeout, watch
        self.judge, self.survey, self.survey_every = Judge(evaluate, strategy, world.layout, own), survey, survey_every
        self.gate = gate or Gate(world.layout, world.model.dtype)
        self.trace = trace or Trace()
        self.checkpoints, self.checkpoint_every = checkpoints, checkpoint_every
        self.interrupt = False
        self.state: Any = strategy.init(world)
        self.model = world.model  # of the last Commit: what is evaluated
        self.traffic = Traffic.of(strategy, world.layout.trainable(world.model) if self.gate.local_statistics else world.model)
        self.clock, self.ledger, self.progress = Clock(), Ledger(world.clients, world.seed), Progress()
        self.memories: dict[int, Mapping[str, Tensor]] = {}  # what client rules keep between jobs
        self.verdicts: dict[int, Verdict] = {}  # computed before their arrival was due
        self.watched: dict[int, float] = {}  # idle clients -> when they leave, where that is known
        self.reason: str | None = None  # why the run ends, once it does
        self._started = False
        self._fired = (-1.0, 0)  # timers fired at this instant

    # ------------------------------------------------------------ running

    def run(self) -> Outcome:
        with one_thread(), rare_collection():
            if not self._started:
                self._started = True
                finite.start(self)
                grid.start(self)
                presence.start(self)
            cadence = Cadence(self.checkpoint_every)
            horizon = self.until.seconds if self.until.seconds is not None else inf
            while self.reason is None:
                due = self.clock.pop(horizon)
                if due is None:
                    self._run_out(horizon)
                    break
                self._handle(*due)
                if self.reason is not None:
                    break  # a checkpoint of an ended run would be resumed past its end
                if self.interrupt:
                    self.reason = INTERRUPTED
                elif self.checkpoints is not None and cadence.due():
                    with cadence.writing():
                        self.save()
            return self._finish()

    def _run_out(self, horizon: float) -> None:
        self.reason = OVER if self.clock.over else "seconds"
        if isfinite(horizon):  # where all are gone too: runs of the same length are compared over the same time
            self.clock.now = horizon

    def _finish(self) -> Outcome:
        p, now = self.progress, self.clock.now
        if self.reason == INTERRUPTED:
            self.save()
        else:
            if not finite.ended(self.reason):  # the state of a run that fell back is not asked any more
                exchange.finish(self)  # no checkpoint follows: killed from here on, a run does all of its end again
            grid.finish(self)
            self.trace.add(now, "stop", self.ledger.version, detail=self.reason)
        self.trace.flush()
        if self.watch is not None:
            self.watch(self)
        assert self.reason is not None
        return Outcome(self.reason, now, self.ledger.version, p.updates, self.model, dict(p.metrics), p.server_seconds, p.server_bytes)

    def _handle(self, now: float, kind: int, who: int, ticket: int) -> None:
        if kind == ARRIVE:
            self._arrive(who, ticket)
        elif kind == LOST:
            presence.leave(self, who) if ticket == NOBODY else self._expire(ticket)
        elif kind == READY:
            presence.come_back(self, who, ticket)
        elif kind == TIMER:
            self._fire(now, who)
        else:
            grid.step(self)

    def own_statistics(self) -> dict[int, Tensor]:
        """Of the clients that have such."""
        if not self.gate.local_statistics:
            return {}
        return {client: memory[STATISTICS] for client, memory in self.memories.items() if STATISTICS in memory}

    # ------------------------------------------------------------ events

    def _fire(self, now: float, order: int) -> None:
        key = self.clock.fired(order)
        self._fired = (now, self._fired[1] + 1 if self._fired[0] == now else 1)
        if self._fired[1] > RESTLESS:
            raise ProtocolError(f"timer {key!r} is set for now, {now}, again and again: this instant never ends")
        self.trace.add(now, "timer", self.ledger.version, detail=key)
        exchange.deliver(self, TimerFired(now, key))

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
        exchange.deliver(self, event, job, verdict)
        if self.progress.updates == self.until.updates and self.reason is None:
            self.reason = "updates"
        presence.offer(self, client)
        if self.watch is not None and self.progress.updates % 64 == 0:
            self.watch(self)

    def _verdict(self, ticket: int) -> Verdict:
        if ticket not in self.verdicts:
            open_jobs = self.ledger.open
            pending = [job for number, job in open_jobs.items() if number not in self.verdicts] if self.worker.batches else ()
            answers = self.worker.compute(open_jobs[ticket], pending)
            for answer, verdict in zip(answers, self.gate.inspect(answers, open_jobs), strict=True):
                number = verdict.ticket if type(verdict) is Result else ticket_of(answer)
                if number is not None and number in open_jobs:  # nobody's ticket is nobody's answer
                    self.verdicts.setdefault(number, verdict)
        return self.verdicts.pop(ticket, "failed: the worker gave no answer")

    def _refuse(self, job: Job, reason: str) -> None:
        now, client, p = self.clock.now, job.client, self.progress
        failed = reason.startswith("failed: ")  # nothing was sent
        size = None if failed else self.traffic.wasted()
        self.trace.add(now, "refuse", self.ledger.version, client, job.ticket, job.base_version, size=size, detail=reason)
        if not finite.job_holds(self, job):
            return
        if failed:
            p.failed(reason)
        self._in_vain(f"answers in a row were refused, the last for {reason}")
        wait = p.refused(client, lasted=now - job.started)
        presence.lose(self, job, self.surroundings.next_available(client, now + wait))

    def _in_vain(self, what: str) -> None:
        """A job more that came to nothing: without an end in time the run might have none."""
        self.progress.barren += 1
        if self.until.seconds is None and self.progress.hopeless(len(self.ledger.clients)):
            self.reason = f"{self.progress.barren} {what}"

    def _expire(self, ticket: int) -> None:
        """A crash is noticed, or a client took too long: the ticket is dead."""
        self.verdicts.pop(ticket, None)
        job = self.ledger.close(ticket)
        now, client = self.clock.now, job.client
        trip = self.surroundings.trip(client, job.index, job.work, job.num_examples, job.started)
        self.trace.add(now, "lost", self.ledger.version, client, ticket, job.base_version, detail=trip.why)
        self._in_vain("jobs in a row were lost")
        if trip.crashes:
            presence.lose(self, job, self.surroundings.next_available(client, now))
        else:  # it still trains; what it sends then comes too late
            sent = job.started + trip.duration
            if trip.again is not None:
                self.clock.push(sent + trip.again, ARRIVE, client, ticket)
            presence.lose(self, job, sent, late=ticket)

    # ------------------------------------------------------------ checkpoints

    def save(self) -> None:
        """Write a checkpoint of this moment between two events."""
        if self.checkpoints is not None and finite.finite(self.model):
            self.trace.flush()  # the trace must reach at least as far as the checkpoint
            self.checkpoints.save(lambda put: resume.tree_of(self, put))

    def restore(self) -> None:
        """Go back to the newest checkpoint that is whole and that the trace matches; without one the run starts over."""
        if self.checkpoints is None or not self.checkpoints.exist():
            self.trace.clear()
            return
        resume.fill(self, self.checkpoints.load(partial(resume.read, self)))
        if self.progress.sound is None:  # a checkpoint from before models were looked at
            finite.start(self)
        self._started = True
