"""The live engine: the same coordinator in wall-clock time, with sites on other machines.

Messages of sites become facts (see inbox), orders become messages. Run time is the number of seconds that this run has
been served. A server that was killed restores its checkpoint, replays the facts in the journal, and sends the open
tickets again; sites answer those from their stored results or compute them again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from math import inf

from offbeat.core.errors import OffbeatError
from offbeat.core.protocol import Strategy, World
from offbeat.core.threads import one_thread
from offbeat.engine.checkpoint import Checkpoints, CheckpointTimer
from offbeat.engine.divergence import is_finite
from offbeat.engine.gate import Gate
from offbeat.engine.live.inbox import Inbox
from offbeat.engine.live.journal import Journal
from offbeat.engine.live.live_state import LiveState
from offbeat.engine.live.sites import SiteIds, Timeouts
from offbeat.engine.live.transport import Farewell, Question, Transport
from offbeat.engine.model_evaluation import Evaluate
from offbeat.engine.progress import Outcome, Status
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.engine.virtual.event_heap import LOST, NO_ID, READY, TIMER
from offbeat.engine.virtual.virtual_engine import INTERRUPTED, Watch

log = logging.getLogger("offbeat")

MAX_WAIT = 0.5  # host seconds that the loop waits for messages before it checks whether to stop


class LiveEngine:
    """Serve one strategy to sites; set `interrupt` at any time to stop with a checkpoint."""

    def __init__(
        self,
        strategy: Strategy,
        world: World,  # usually without clients: sites join later
        transport: Transport,
        *,
        until: Until,
        layout: str = "",  # digest of the model's layout, which sites must have too
        code: str | None = None,  # digest of the rules; None: any
        evaluate: Evaluate | None = None,  # None: the server has no test data
        evaluate_every: float = inf,  # seconds between evaluations
        gate: Gate | None = None,
        trace: Trace | None = None,
        site_ids: SiteIds | None = None,
        journal: Journal | None = None,
        checkpoints: Checkpoints | None = None,
        checkpoint_every: float = 30.0,
        min_sites: int = 1,
        timeouts: Timeouts = Timeouts(),
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interrupt = False
        self.trace, self.site_ids, self.journal = trace or Trace(), site_ids or SiteIds(), journal
        self.trace.retry_failed_writes = journal is not None  # the journal has everything that the trace has
        self.live_state = LiveState(
            strategy,
            world,
            transport,
            until=until,
            gate=gate,
            evaluate=evaluate,
            evaluate_every=evaluate_every,
            trace=self.trace,
            site_ids=self.site_ids,
            journal=journal,
            timeouts=timeouts,
            stopping=lambda: self.interrupt,
        )
        self.inbox = Inbox(self.live_state, layout, code)
        self.coordinator = self.live_state.coordinator
        self.connections, self.site_scores = self.live_state.connections, self.live_state.site_scores
        self.transport, self.until, self.timeouts, self.min_sites = transport, until, timeouts, min_sites
        self.checkpoints, self.checkpoint_every = checkpoints, checkpoint_every
        self._watch = watch
        # run time = offset + monotonic - since
        self._monotonic, self._offset, self._since = clock, 0.0, clock()
        self._horizon = until.seconds if until.seconds is not None else inf
        self._ended: str | None = None
        self._journal_file: int | None = None  # the first one after the restored checkpoint

    def run(self) -> Outcome:
        """Serve sites until the run ends or is interrupted."""
        try:
            with one_thread():
                if self.journal is not None:
                    self.journal.begin(self._journal_file)
                self._since = self._monotonic()
                self._expect_sites()
                timer = CheckpointTimer(self.checkpoint_every, self._monotonic)
                while self.coordinator.stop_reason is None and self._ended is None:
                    self._step()
                    self._between_events(timer)
                return self.finish()
        finally:
            self.transport.close()
            if self.journal is not None:
                self.journal.close()

    def now(self) -> float:
        """Return the run time: 0 until enough sites joined, and at most the time limit."""
        return min(self._offset + self._monotonic() - self._since, self._horizon) if self.live_state.started else 0.0

    def _step(self) -> None:
        """Handle the messages that arrived, then the events that are due."""
        state, clock = self.live_state, self.live_state.clock
        wait = min(clock.next_time(), self._horizon) - self.now() if state.started else inf
        messages = self.transport.receive(min(MAX_WAIT, max(0.0, wait)))
        clock.now = self.now()
        for message in messages:
            self.inbox.handle(message)
        if not state.started:
            self._start()
        moment = self.now()  # events that become due after this are handled after the next messages
        while self.coordinator.stop_reason is None and clock.next_time() <= moment:
            _, kind, client, ticket = clock.heap[0]
            now = max(self.now(), clock.now)
            clock.pop()
            clock.now = now
            self._handle(kind, client, ticket)
        if state.started and self.coordinator.stop_reason is None and self.now() >= self._horizon:
            clock.now = self._horizon
            self._ended = "seconds"

    def _expect_sites(self) -> None:
        """After a restart: schedule the loss of all clients of the previous server, in case they do not reconnect."""
        ledger, clock = self.coordinator.ledger, self.live_state.clock
        until = clock.now + self.timeouts.disconnected
        for job in ledger.open_jobs.values():
            clock.push(until, LOST, job.client, job.ticket)
        for client in ledger.known_clients():
            if ledger.is_idle(client):
                clock.push(until, LOST, client)

    def _start(self) -> None:
        """Start the run if enough sites joined; for the strategy all of them join at once, in order of their ids."""
        waiting = self.inbox.waiting_sites
        if len(waiting) < self.min_sites:
            return
        self._since = self._monotonic()
        state = self.live_state
        state.begin(0.0)
        for client in sorted(waiting):
            state.carry_out(state.coordinator.joined(state.clock.now, client, waiting[client]))
        waiting.clear()

    def _between_events(self, timer: CheckpointTimer) -> None:
        """Report the progress, then stop if the run was interrupted, or write a checkpoint if one is due."""
        if self._watch is not None and self._watch(self.status()):
            self.interrupt = True
        self.trace.flush_if_behind()
        if self.interrupt:
            self._ended = INTERRUPTED
        elif self.live_state.started and self.coordinator.stop_reason is None and timer.is_due():
            with timer.writing():
                try:
                    self.save()
                except (OffbeatError, OSError) as error:  # the journal has everything
                    log.warning("no checkpoint could be written, the run continues: %s", error)

    def finish(self) -> Outcome:
        """End the run: ask sites for their scores of the final model and send them a farewell."""
        run, now, reason = self.coordinator, self.live_state.clock.now, INTERRUPTED
        if run.stop_reason is None and self._ended == INTERRUPTED:
            if self.live_state.started:
                self.save()
        else:
            run.driver.end(self._ended or INTERRUPTED)
            reason = run.stop_reason or INTERRUPTED
            run.driver.finish(now)
            run.driver.check_model()
            self.live_state.evaluation.finish(now, run)
            self._collect_final_scores(now)
            self.trace.add(now, "stop", run.ledger.version, detail=reason)
            for address in [*self.connections.client, *self.inbox.late_sites]:
                self.transport.send(address, Farewell(f"the run has ended: {reason}"))
        self.trace.flush()
        return run.outcome(reason, now, self._metrics(), self.live_state.evaluation.state.server_bytes)

    def status(self) -> Status:
        """Return the progress of the run, with the reachable clients."""
        return self.coordinator.status(self.now(), self._metrics(), tuple(sorted(self.connections.address)))

    def _metrics(self) -> dict[str, float]:
        """Return the newest metrics of the sites and of the server's test data."""
        return {**self.site_scores.state.last, **self.live_state.evaluation.state.metrics}

    def _handle(self, kind: int, client: int, ticket: int) -> None:
        """Handle an event that was popped."""
        state, run, now = self.live_state, self.coordinator, self.live_state.clock.now
        if kind == TIMER:
            state.carry_out(run.timer_fired(now, state.clock.take_timer(client)))
        elif kind == LOST:
            self._expire(client, ticket)
        elif kind == READY:
            if client in run.ledger.absent and client in self.connections.address:
                state.carry_out(run.joined(now, client, run.reported_examples(client)))
        else:
            clients = self.site_scores.sites_to_ask(self.connections.address, now, self.connections.answer_timeout)
            state.evaluation_due(now, clients)
            self._send_questions(now, clients)

    def _expire(self, client: int, ticket: int) -> None:
        """Handle the end of waiting for a ticket, or without one for an idle client that disconnected."""
        run, now, timeout = self.coordinator, self.live_state.clock.now, self.connections.answer_timeout(client)
        job, reachable = run.ledger.open_jobs.get(ticket), client in self.connections.address
        if ticket == NO_ID and not reachable and run.ledger.is_idle(client):
            self.live_state.carry_out(run.left(now, client))
        if job is None:
            return
        if reachable and now < job.started + timeout:  # the timeout has grown since the job was sent
            self.live_state.clock.push(job.started + timeout, LOST, client, ticket)
            return
        log.warning("%s: ticket %d is not waited for any longer", self.site_ids.name_of(client), ticket)
        # the job or its answer may have been lost, so a reachable client is offered work again
        why, back = ("no answer in time", now + timeout) if reachable else ("out of reach", inf)
        self.live_state.expired(now, ticket, why, back)

    def _send_questions(self, now: float, clients: tuple[int, ...]) -> None:
        """Ask these clients for the metrics of the current model on their own test examples."""
        run = self.coordinator
        if run.driver.diverged:
            return
        model_of = self.live_state.evaluator.model_of(run.state, run.model, {})
        for client in clients:
            self.site_scores.unanswered[client] = now, run.ledger.version
            self.transport.send(self.connections.address[client], Question(now, run.ledger.version, model_of(client)))

    def _collect_final_scores(self, now: float) -> None:
        """Ask all sites for the metrics of the final model, and wait for the answers until the timeout."""
        self.site_scores.close_point()
        run, connections = self.coordinator, self.connections
        clients = self.site_scores.sites_to_ask(connections.address, inf, connections.answer_timeout)
        evaluated = () if run.driver.diverged else clients
        self.site_scores.open_point(now, run.ledger.version, run.progress.updates, evaluated)
        self._send_questions(now, clients)
        deadline = self._monotonic() + self.timeouts.final_scores
        while self.site_scores.state.waiting and (left := deadline - self._monotonic()) > 0 and not self.interrupt:
            for message in self.transport.receive(min(MAX_WAIT, left)):
                self.inbox.handle(message)
        self.site_scores.close_point()

    def save(self) -> None:
        """Write a checkpoint, and start a new journal file for the facts that follow."""
        if self.checkpoints is None or not is_finite(self.coordinator.model):
            return
        self.trace.flush()
        clock = self.live_state.clock
        clock.now = max(clock.now, self.now())
        journal_file = 0 if self.journal is None else self.journal.start_file()
        self.checkpoints.save(partial(self.live_state.save, journal_file))
        if self.journal is not None:
            self.journal.drop_old_files(journal_file)

    def restore(self) -> None:
        """Continue from the newest checkpoint, and replay the facts recorded since."""
        if self.checkpoints is not None and self.checkpoints.exist():
            self._journal_file = self.live_state.restore(self.checkpoints)
        else:
            self.trace.clear()
        self.live_state.replay_journal(self._journal_file or 0)
        self._offset = self.live_state.clock.now
