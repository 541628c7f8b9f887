"""The virtual-time engine: exact, deterministic and resumable.

The engine pops the next event from a heap, reports it to the coordinator as a fact, and carries out the orders that
follow by pushing further events: a job becomes its arrival, at a time that the simulated world computes. The order of
arrivals never depends on training results, so a worker may compute jobs in any order until their arrival is due.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import inf, isfinite

from torch import Tensor

from offbeat.core.client_environment import ClientEnvironment
from offbeat.core.errors import RunError
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import CancelTimer, SetTimer, Strategy, World
from offbeat.core.threads import one_thread
from offbeat.engine.checkpoint import Checkpoints, CheckpointTimer
from offbeat.engine.coordinator import Coordinator
from offbeat.engine.divergence import is_finite
from offbeat.engine.gate import Gate, Verdict, ticket_of
from offbeat.engine.model_evaluation import ClientMeans, ClientSurvey, EvaluationSchedule, ModelEvaluator
from offbeat.engine.process_memory import infrequent_garbage_collection
from offbeat.engine.progress import Outcome, Status
from offbeat.engine.run_checkpoint import pack_checkpoint, read_checkpoint
from offbeat.engine.strategy_driver import Offer, Order, sorted_clients
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.engine.virtual.availability_clock import ClientAvailability
from offbeat.engine.virtual.event_heap import ARRIVE, EVALUATE, LOST, NO_ID, READY, TIMER, Clock, ScheduledEvent
from offbeat.engine.worker import Answer, Worker

INTERRUPTED = "interrupted"
NOTHING_LEFT = "nothing left to happen"
UPDATES_BETWEEN_WATCH_CALLS = 64

Collect = Callable[[Collection[int]], Sequence[Answer]]  # Worker.collect
Watch = Callable[[Status], bool | None]  # called from time to time; True stops the run with a checkpoint


class VirtualEngine:
    """Run one strategy in one simulated world; set `interrupt` at any time to stop after the current event."""

    def __init__(
        self,
        strategy: Strategy,
        world: World,
        environment: ClientEnvironment,
        worker: Worker,
        *,
        until: Until,
        evaluate: Callable[[Tensor], Mapping[str, float]] = lambda model: {},
        client_means: ClientMeans | None = None,  # evaluates clients on their own test examples instead
        evaluate_every: float = inf,  # virtual seconds between evaluations
        survey: ClientSurvey | None = None,  # evaluates clients on their own examples at the end
        survey_every: int = 0,  # and at every n-th evaluation
        gate: Gate | None = None,
        trace: Trace | None = None,
        checkpoints: Checkpoints | None = None,
        checkpoint_every: float = 30.0,  # host seconds between checkpoints; 0: after every event
        timeout: float = 10.0,  # a ticket expires after this many times the expected duration of its job
        watch: Watch | None = None,
    ) -> None:
        self.trace = trace or Trace()
        self.coordinator = Coordinator(
            strategy, world, until=until, gate=gate, trace=self.trace, num_examples=environment.num_examples
        )
        evaluator = ModelEvaluator(evaluate, self.coordinator.driver.contract, world.layout, client_means)
        self.evaluation = EvaluationSchedule(
            evaluator, until, self.trace, every=evaluate_every, survey=survey, survey_every=survey_every
        )
        self.worker, self.until, self.timeout = worker, until, timeout
        self.checkpoints, self.checkpoint_every = checkpoints, checkpoint_every
        self.clock = Clock()
        self.availability = ClientAvailability(environment, self.clock, self.coordinator.ledger)
        self.interrupt = False
        self._watch = watch
        self._horizon = until.seconds if until.seconds is not None else inf
        self._verdicts: dict[int, Verdict] = {}  # of answers that were computed but are not yet due
        self._waiting: ScheduledEvent | None = None  # the arrival whose result is missing
        self._waits = self._waits_until_flush = 1  # waits for results until the trace checks its clock again
        self._started = False
        self._checkpoint_timer: CheckpointTimer | None = None
        self._ended: str | None = None

    # ------------------------------------------------------------ running

    def run(self) -> Outcome:
        """Run to the end with a worker that only this run uses, and close the worker."""
        try:
            with one_thread(), infrequent_garbage_collection():
                self.advance(self.worker.collect)
                return self.finish()
        finally:
            self.worker.close()

    def advance(self, collect: Collect | None = None) -> int | None:
        """Run until a result is missing and return its ticket, or None if the run ended.

        With `collect` the engine collects results itself and runs to the end.
        """
        if self._checkpoint_timer is None:
            self._checkpoint_timer = CheckpointTimer(self.checkpoint_every)
        if not self._started:
            self._start()
        clock, verdicts, horizon = self.clock, self._verdicts, self._horizon
        driver, open_jobs = self.coordinator.driver, self.coordinator.ledger.open_jobs
        while True:
            if driver.stop_reason is not None or self._ended is not None:
                return None
            event = self._waiting or clock.next(horizon)
            if event is None:
                self._ended = NOTHING_LEFT if clock.only_evaluations_left else "seconds"
                if isfinite(horizon):  # also if nothing is left: runs of the same length are compared over it
                    clock.now = horizon
                return None
            _, kind, client, ticket = event
            if kind == ARRIVE and ticket not in verdicts and ticket in open_jobs:
                self._waiting = event
                self._waits -= 1
                if self._waits <= 0:
                    self._waits = self._waits_until_flush = self.trace.flush_if_behind(self._waits_until_flush)
                if collect is None:
                    return ticket
                self.provide(collect((ticket,)))
            self._waiting = None
            clock.pop()
            self._handle(kind, client, ticket)
            if driver.stop_reason is None and (self.interrupt or self.checkpoints is not None):
                self._between_events()  # a checkpoint of an ended run would be resumed past its end

    def provide(self, answers: Sequence[Answer]) -> None:
        """Take answers of the worker, to the missing ticket and to any others."""
        verdicts, missing = self._verdicts, NO_ID if self._waiting is None else self._waiting[3]
        judged = self.coordinator.judge(answers)
        if len(judged) == 1 and type(judged[0]) is Result and judged[0].ticket == missing:  # the usual case
            verdicts.setdefault(missing, judged[0])
            return
        open_jobs = self.coordinator.ledger.open_jobs
        for answer, verdict in zip(answers, judged, strict=True):
            ticket = verdict.ticket if type(verdict) is Result else ticket_of(answer)
            if ticket in open_jobs:
                verdicts.setdefault(ticket, verdict)
        if missing != NO_ID and missing not in verdicts:
            verdicts[missing] = "failed: the worker gave no answer"

    def finish(self) -> Outcome:
        """End the run after the last event: evaluate the model, or write a checkpoint if the run is to be resumed."""
        run, now, reason = self.coordinator, self.clock.now, INTERRUPTED
        for ticket in run.ledger.open_jobs:
            self.worker.cancel(ticket)
        if run.stop_reason is None and self._ended in (None, INTERRUPTED):  # None: stopped between two events
            self.save()
        else:
            run.driver.end(self._ended or NOTHING_LEFT)
            run.driver.finish(now)  # no checkpoint follows: a run killed from here on repeats all of its end
            run.driver.check_model()
            self.evaluation.finish(now, run)
            reason = run.stop_reason or NOTHING_LEFT
            self.trace.add(now, "stop", run.ledger.version, detail=reason)
        self.trace.flush()
        self._call_watcher()
        evaluation = self.evaluation.state
        return run.outcome(reason, now, dict(evaluation.metrics), evaluation.server_bytes)

    def status(self) -> Status:
        """Return the progress of the run."""
        return self.coordinator.status(self.clock.now, self.evaluation.state.metrics)

    def _start(self) -> None:
        """Make the available clients ready, and schedule the first evaluation and all departures."""
        self._started = True
        self.clock.push(0.0, EVALUATE, NO_ID)
        clients = sorted_clients(self.coordinator.world.clients)
        self._carry_out(self.coordinator.begin(0.0, self.availability.absent_at_start(clients)))
        for client in clients:
            self.availability.schedule_departure(client)

    def _between_events(self) -> None:
        """Stop if the run was interrupted, otherwise write a checkpoint if one is due."""
        if self.interrupt:
            self._ended = INTERRUPTED
        elif self.checkpoints is not None and self._checkpoint_timer is not None and self._checkpoint_timer.is_due():
            with self._checkpoint_timer.writing():
                self.save()

    def _call_watcher(self) -> None:
        """Report the progress to the watcher, which may interrupt the run."""
        if self._watch is not None and self._watch(self.status()):
            self.interrupt = True

    # ------------------------------------------------------------ events

    def _handle(self, kind: int, client: int, ticket: int) -> None:
        """Handle an event that was popped."""
        if kind == ARRIVE:
            self._arrive(client, ticket)
        elif kind == LOST and ticket != NO_ID:
            self._expire(client, ticket)
        elif kind == LOST:  # a client that was sent work since its departure was scheduled stays until that job ends
            if self.availability.has_left(client):
                self._carry_out(self.coordinator.left(self.clock.now, client))
        elif kind == READY:
            self._return(client, ticket)
        elif kind == TIMER:
            self._carry_out(self.coordinator.timer_fired(self.clock.now, self.clock.take_timer(client)))
        else:
            self._evaluate()

    def _arrive(self, client: int, ticket: int) -> None:
        """Handle the arrival of an answer, whose verdict is known, or of its duplicate."""
        run, now = self.coordinator, self.clock.now
        if ticket not in run.ledger.open_jobs:  # each ticket is answered once
            run.unexpected_upload(now, client, ticket, "duplicate")
            return
        back = self.availability.next_available(client, now)
        self._carry_out(run.answered(now, ticket, self._verdicts.pop(ticket), back))
        if client not in run.ledger.open_tickets:  # usually it has its next job already
            self.availability.schedule_departure(client)
        if self._watch is not None and run.progress.updates % UPDATES_BETWEEN_WATCH_CALLS == 0:
            self._call_watcher()

    def _expire(self, client: int, ticket: int) -> None:
        """Handle the timeout of a ticket: the client crashed, or trains for too long and will answer late."""
        run, now, environment = self.coordinator, self.clock.now, self.availability.environment
        self._verdicts.pop(ticket, None)  # a worker may have answered without being asked
        job = run.ledger.open_jobs[ticket]
        timing = environment.time_job(client, job.index, job.work, job.num_examples, job.started)
        if timing.crashes:
            back = self.availability.next_available(client, now)
            self._carry_out(run.expired(now, ticket, timing.crash_reason, back))
        else:
            sent = job.started + timing.duration
            if timing.duplicate_after is not None:
                self.clock.push(sent + timing.duplicate_after, ARRIVE, client, ticket)
            self._carry_out(run.expired(now, ticket, timing.crash_reason, sent), late_ticket=ticket)
        self.availability.schedule_departure(client)

    def _return(self, client: int, late_ticket: int) -> None:
        """Handle a scheduled return; the client may bring the answer to an expired ticket."""
        run, now = self.coordinator, self.clock.now
        if late_ticket != NO_ID:
            run.unexpected_upload(now, client, late_ticket, "late")
        if self.availability.has_returned(client):
            self._carry_out(run.joined(now, client, self.availability.num_examples(client)))
            self.availability.schedule_departure(client)

    def _evaluate(self) -> None:
        """Evaluate at a point of the grid and schedule the next one."""
        run, clock = self.coordinator, self.clock
        if run.driver.check_model():
            next_point = self.evaluation.evaluate_grid_point(clock.now, run, clock.next_time())
            clock.push(next_point, EVALUATE, NO_ID)
            self._call_watcher()

    # ------------------------------------------------------------ orders

    def _carry_out(self, orders: list[Order], late_ticket: int = NO_ID) -> None:
        """Carry out orders; a client that is offered later may bring the answer to `late_ticket`."""
        for order in orders:
            if isinstance(order, Job):
                self._schedule_outcome(order)
            elif isinstance(order, SetTimer):
                self.clock.set_timer(order.key, order.at)
            elif isinstance(order, CancelTimer):
                self.clock.cancel_timer(order.key)
            elif isinstance(order, Offer):
                self.availability.schedule_return(order.client, order.not_before, late_ticket)

    def _schedule_outcome(self, job: Job) -> None:
        """Schedule the outcome of a job: arrival, duplicate arrival or expiry; an expiring job is never computed."""
        clock, client, ticket, now = self.clock, job.client, job.ticket, job.started
        duration, expected, crashes, _, duplicate_after = self.availability.environment.time_job(
            client, job.index, job.work, job.num_examples, now
        )
        if not 0.0 <= duration < inf:
            raise RunError(f"client {client}: job {job.index} takes {duration} s; durations must be finite and >= 0")
        timeout, due = self.timeout * expected, now + duration
        if crashes or duration > timeout:
            clock.push(now + timeout, LOST, client, ticket)
            return
        clock.push(due, ARRIVE, client, ticket)
        if duplicate_after is not None:
            clock.push(due + duplicate_after, ARRIVE, client, ticket)
        if due <= self._horizon:
            self.worker.submit(job, due)

    # ------------------------------------------------------------ checkpoints

    def save(self) -> None:
        """Write a checkpoint of this moment between two events."""
        if self.checkpoints is not None and is_finite(self.coordinator.model):
            self.trace.flush()  # the trace must reach at least as far as the checkpoint
            # results computed ahead of time are stored too, because not every worker repeats them bit for bit
            fields = {"verdicts": self._verdicts}
            pack = partial(pack_checkpoint, self.coordinator, self.trace, self.evaluation, self.clock, fields)
            self.checkpoints.save(pack)

    def restore(self) -> None:
        """Continue from the newest checkpoint that is intact and matches the trace; without one, start over."""
        if self.checkpoints is None or not self.checkpoints.exist():
            self.trace.clear()
            return
        saved = self.checkpoints.load(partial(read_checkpoint, self.coordinator, self.trace, {"verdicts": dict}))
        saved.restore(self.coordinator, self.trace, self.evaluation)
        self.clock, self._verdicts = saved.clock, saved.engine_fields["verdicts"]
        self.availability = self.availability.restored(self.clock, self.coordinator.ledger)
        self._started = True
        unanswered = {t: job for t, job in self.coordinator.ledger.open_jobs.items() if t not in self._verdicts}
        for at, kind, _, ticket in sorted(self.clock.heap):
            if kind == ARRIVE and at <= self._horizon and ticket in unanswered:
                self.worker.submit(unanswered.pop(ticket), at)  # once, although its upload may arrive twice
