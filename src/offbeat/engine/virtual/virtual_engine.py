"""The virtual-time engine: exact, deterministic, resumable.

In virtual time the order of arrivals depends on durations only, never on training results. So a job's result is asked
for when its arrival is due, and whatever else was sent may be computed with it, anywhere, in any order.

The conversation with the strategy is the coordinator's. This host owns the clock and carries orders out on it: how long
a job takes, who is there, when the model is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import inf, isfinite

from torch import Tensor

from offbeat.core.client_environment import Surroundings
from offbeat.core.errors import RunError
from offbeat.core.jobs import Job, Result
from offbeat.core.ledger import in_order
from offbeat.core.protocol import CancelTimer, SetTimer, Strategy, World
from offbeat.core.threads import one_thread
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.checkpoint_interval import Cadence
from offbeat.engine.coordinator import Coordinator
from offbeat.engine.divergence import finite
from offbeat.engine.evaluation_schedule import Evaluation
from offbeat.engine.gate import Gate, Verdict, ticket_of
from offbeat.engine.model_evaluation import ClientSurvey, Judge, Own
from offbeat.engine.progress import Outcome, Status, rare_collection
from offbeat.engine.strategy_driver import Offer, Order
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.engine.virtual.availability_clock import Presence
from offbeat.engine.virtual.event_heap import ARRIVE, EVALUATE, LOST, NOBODY, READY, TIMER, Clock, Due
from offbeat.engine.virtual.virtual_checkpoint import read, tree
from offbeat.engine.worker import Answer, Worker

INTERRUPTED = "interrupted"
OVER = "nothing left to happen"
OFTEN = 64  # updates between two looks of a watcher

Collect = Callable[[Collection[int]], Sequence[Answer]]  # what a worker does
Watch = Callable[[Status], bool | None]  # called now and then; True asks the run to stop with a checkpoint


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
        survey: ClientSurvey | None = None,  # of the clients, each on its own examples: at the end, and
        survey_every: int = 0,  # at every so many evaluations
        gate: Gate | None = None,
        trace: Trace | None = None,
        checkpoints: Checkpoints | None = None,
        checkpoint_every: float = 30.0,  # host seconds at least; 0: after every event
        timeout: float = 10.0,  # a ticket expires after this many times its expected duration
        watch: Watch | None = None,
    ) -> None:
        self.trace = trace or Trace()
        self.coordinator = Coordinator(
            strategy, world, until=until, gate=gate, trace=self.trace, num_examples=surroundings.num_examples
        )
        judge = Judge(evaluate, self.coordinator.contract, world.layout, own)
        self.evaluation = Evaluation(judge, until, self.trace, every=every, survey=survey, survey_every=survey_every)
        self.worker, self.until, self.timeout = worker, until, timeout
        self.checkpoints, self.checkpoint_every = checkpoints, checkpoint_every
        self.clock = Clock()
        self.presence = Presence(surroundings, self.clock, self.coordinator.ledger)
        self.interrupt = False
        self._watch = watch
        self._horizon = until.seconds if until.seconds is not None else inf
        self._verdicts: dict[int, Verdict] = {}  # computed and judged, not yet due
        self._waiting: Due | None = None  # the arrival whose result was asked for
        self._waits = self._stride = 1  # for results, until the trace looks at the clock again
        self._started = False
        self._cadence: Cadence | None = None  # begins with the run
        self._ended: str | None = None

    # ------------------------------------------------------------ running

    def run(self) -> Outcome:
        """To the end, with a worker that is this run's alone: it is closed afterwards."""
        try:
            with one_thread(), rare_collection():
                self.advance(self.worker.collect)
                return self.finish()
        finally:
            self.worker.close()

    def advance(self, collect: Collect | None = None) -> int | None:
        """Go on until a result is needed, and say of which ticket; None when the run has ended. Where it is said how
        to `collect` results, that is done as they are needed.
        """
        if self._cadence is None:
            self._cadence = Cadence(self.checkpoint_every)
        if not self._started:
            self._start()
        run, clock, verdicts, waited_for = self.coordinator, self.clock, self._verdicts, self.coordinator.ledger.open
        horizon = self._horizon
        # not `while run.reason is None`: Python speeds up a loop that jumps back, not one that asks whether to
        while True:
            if run.reason is not None or self._ended is not None:
                return None
            due = self._waiting or clock.next(horizon)
            if due is None:
                self._run_out()
                return None
            _, kind, who, ticket = due
            if kind == ARRIVE and ticket not in verdicts and ticket in waited_for:
                self._waiting = due
                self._waits -= 1
                if self._waits <= 0:
                    self._waits = self._stride = self.trace.keep_up(self._stride)
                if collect is None:
                    return ticket
                self.provide(collect((ticket,)))
            self._waiting = None
            clock.pop()
            self._handle(kind, who, ticket)
            if run.reason is None and (self.interrupt or self.checkpoints is not None):
                self._between_events()  # a checkpoint of an ended run would be resumed past its end

    def provide(self, answers: Sequence[Answer]) -> None:
        """Results of the worker, of the ticket that was needed and of any others."""
        verdicts, waiting = self._verdicts, self._waiting
        judged = self.coordinator.judge(answers)
        if waiting is not None and len(judged) == 1:
            only = judged[0]
            if type(only) is Result and only.ticket == waiting[3]:  # as a rule: what was needed, and no more
                verdicts.setdefault(only.ticket, only)
                return
        waited_for = self.coordinator.ledger.open
        for i, verdict in enumerate(judged):
            number = verdict.ticket if type(verdict) is Result else ticket_of(answers[i])
            if number in waited_for:  # nobody's ticket is nobody's answer
                verdicts.setdefault(number, verdict)
        if waiting is not None and waiting[3] not in verdicts:
            verdicts[waiting[3]] = "failed: the worker gave no answer"

    def finish(self) -> Outcome:
        """After the last event: the end is evaluated too, or a checkpoint written if the run is to go on later."""
        run, now, reason = self.coordinator, self.clock.now, INTERRUPTED
        for ticket in run.ledger.open:
            self.worker.cancel(ticket)
        if run.reason is None and self._ended in (None, INTERRUPTED):  # None: in the middle of it
            self.save()
        else:
            run.end(self._ended or OVER)
            run.finish(now)  # no checkpoint follows: killed from here on, a run does all of its end again
            run.model_holds()
            self.evaluation.finish(now, run)
            reason = run.reason or OVER
            self.trace.add(now, "stop", run.ledger.version, detail=reason)
        self.trace.flush()
        self._look()
        p, found = run.progress, self.evaluation.measured
        return Outcome(
            reason,
            now,
            run.ledger.version,
            p.updates,
            run.model,
            dict(found.metrics),
            p.server_seconds,
            found.server_bytes,
        )

    def status(self) -> Status:
        ledger, now, updates = self.coordinator.ledger, self.clock.now, self.coordinator.progress.updates
        return Status(
            now,
            self.until.share(now, updates),
            ledger.version,
            updates,
            len(ledger.open),
            ledger.age(),
            self.evaluation.measured.metrics,
        )

    def _start(self) -> None:
        self._started = True
        self.clock.push(0.0, EVALUATE, NOBODY)
        clients = in_order(self.coordinator.world.clients)
        self._carry_out(self.coordinator.begin(0.0, self.presence.away(clients)))
        for client in clients:
            self.presence.watch(client)

    def _run_out(self) -> None:
        self._ended = OVER if self.clock.over else "seconds"
        if isfinite(self._horizon):  # where all are gone too: runs of the same length are compared over the same time
            self.clock.now = self._horizon

    def _between_events(self) -> None:
        if self.interrupt:
            self._ended = INTERRUPTED
        elif self.checkpoints is not None and self._cadence is not None and self._cadence.due():
            with self._cadence.writing():
                self.save()

    def _look(self) -> None:
        if self._watch is not None and self._watch(self.status()):
            self.interrupt = True

    # ------------------------------------------------------------ what happens

    def _handle(self, kind: int, who: int, ticket: int) -> None:
        run, now = self.coordinator, self.clock.now
        if kind == ARRIVE:
            if ticket not in run.ledger.open:  # each ticket is consumed once
                run.strayed(now, who, ticket, "duplicate")
                return
            back = self.presence.back(who, now)
            self._carry_out(run.answered(now, ticket, self._verdicts.pop(ticket), back))
            if who not in run.ledger.busy:  # as a rule it has its next job already
                self.presence.watch(who)
            if self._watch is not None and run.progress.updates % OFTEN == 0:
                self._look()
        elif kind == LOST:
            if ticket == NOBODY:
                self._leave(who)
            else:
                self._expire(who, ticket)
        elif kind == READY:
            self._come_back(who, ticket)
        elif kind == TIMER:
            self._carry_out(run.fired(now, self.clock.fired(who)))
        else:
            self._evaluate()

    def _evaluate(self) -> None:
        clock = self.clock
        if not self.coordinator.model_holds():
            return
        clock.push(self.evaluation.point(clock.now, self.coordinator, clock.upcoming()), EVALUATE, NOBODY)
        self._look()

    def _expire(self, client: int, ticket: int) -> None:
        """A crash is noticed, or a client took too long: the ticket is dead."""
        run, now = self.coordinator, self.clock.now
        self._verdicts.pop(ticket, None)  # of a worker that answers what it was not asked
        job = run.ledger.open[ticket]
        trip = self.presence.surroundings.trip(client, job.index, job.work, job.num_examples, job.started)
        if trip.crashes:
            self._carry_out(run.expired(now, ticket, trip.why, self.presence.back(client, now)))
        else:  # it still trains; what it sends then comes too late
            sent = job.started + trip.duration
            if trip.again is not None:
                self.clock.push(sent + trip.again, ARRIVE, client, ticket)
            self._carry_out(run.expired(now, ticket, trip.why, sent), late=ticket)
        self.presence.watch(client)

    def _leave(self, client: int) -> None:
        """The time at which an idle client would leave; if it was sent work meanwhile, that job has its own fate."""
        if self.presence.leaves(client):
            self._carry_out(self.coordinator.left(self.clock.now, client))

    def _come_back(self, client: int, late: int) -> None:
        """The time at which a client was to be back; with it may come an answer whose ticket is dead."""
        run, now = self.coordinator, self.clock.now
        if late != NOBODY:
            run.strayed(now, client, late, "late")
        if self.presence.is_back(client):
            self._carry_out(run.joined(now, client, self.presence.num_examples(client)))
            self.presence.watch(client)

    # ------------------------------------------------------------ orders

    def _carry_out(self, orders: list[Order], late: int = NOBODY) -> None:
        """Of a job it is put on the clock how it will end: it arrives, once or twice, or its ticket expires and nobody
        computes it.
        """
        clock, world = self.clock, self.presence.surroundings
        for order in orders:
            if not isinstance(order, Job):
                self._arrange(order, late)
                continue
            client, ticket, now = order.client, order.ticket, order.started
            trip = world.trip(client, order.index, order.work, order.num_examples, now)
            duration, expected, crashes, _, again = trip
            if not 0.0 <= duration < inf:
                raise RunError(
                    f"client {client} would take {duration} s for its job {order.index}: durations are finite, 0 or "
                    "more"
                )
            patience, due = self.timeout * expected, now + duration
            if crashes or duration > patience:
                clock.push(now + patience, LOST, client, ticket)
                continue
            clock.push(due, ARRIVE, client, ticket)
            if again is not None:
                clock.push(due + again, ARRIVE, client, ticket)
            if due <= self._horizon:
                self.worker.submit(order, due)

    def _arrange(self, order: SetTimer | CancelTimer | Offer, late: int) -> None:
        if isinstance(order, SetTimer):
            self.clock.set_timer(order.key, order.at)
        elif isinstance(order, Offer):
            self.presence.expect(order.client, order.not_before, late)
        else:
            self.clock.cancel_timer(order.key)

    # ------------------------------------------------------------ checkpoints

    def save(self) -> None:
        """Write a checkpoint of this moment between two events."""
        if self.checkpoints is not None and finite(self.coordinator.model):
            self.trace.flush()  # the trace must reach at least as far as the checkpoint
            self.checkpoints.save(
                partial(tree, self.coordinator, self.trace, self.clock, self.evaluation, self._verdicts)
            )

    def restore(self) -> None:
        """Go back to the newest checkpoint that is whole and that the trace matches; without one the run starts
        over.
        """
        if self.checkpoints is None or not self.checkpoints.exist():
            self.trace.clear()
            return
        # all of it, before anything is touched
        saved = self.checkpoints.load(partial(read, self.coordinator, self.trace))
        self.coordinator.restore(saved.conversation)
        self.evaluation.restore(saved.measured)
        self.clock, self._verdicts = saved.clock, saved.verdicts
        self.presence = self.presence.restored(self.clock, self.coordinator.ledger)
        self._started = True
        self.trace.cut(saved.seq, saved.tally)
        waiting = {ticket: job for ticket, job in self.coordinator.ledger.open.items() if ticket not in self._verdicts}
        for at, kind, _, ticket in sorted(self.clock.heap):
            if kind == ARRIVE and at <= self._horizon and ticket in waiting:
                self.worker.submit(waiting.pop(ticket), at)  # once, though its upload may come twice
