"""The live engine: the same conversation in wall-clock time, with sites that are somewhere else.

Replies become facts, orders become messages, timers follow the monotonic clock. Run time is the seconds this run has
been served: it stands still while no server is there. What happens between two sites is the transport's business; the
loop never waits for any one of them.

Nothing is lost and nothing is done twice: a fact is in the record before the strategy hears of it, so a server that is
killed goes on from its checkpoint, hears the facts since again, and sends the open tickets once more. A site answers
those from its outbox, or computes them again; each ticket is consumed once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from math import inf

from offbeat.core.errors import OffbeatError
from offbeat.core.protocol import Strategy, World
from offbeat.core.threads import one_thread
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.checkpoint_interval import Cadence
from offbeat.engine.divergence import finite
from offbeat.engine.gate import Gate
from offbeat.engine.live import live_checkpoint
from offbeat.engine.live.connections import Patience
from offbeat.engine.live.inbox import Hearing
from offbeat.engine.live.journal import Record
from offbeat.engine.live.live_state import Facts
from offbeat.engine.live.site_ids import Roster
from offbeat.engine.live.transport import Farewell, Question, Transport
from offbeat.engine.model_evaluation import Evaluate
from offbeat.engine.progress import Outcome, Status
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.engine.virtual.event_heap import LOST, NOBODY, READY, TIMER
from offbeat.engine.virtual.virtual_engine import INTERRUPTED, Watch

log = logging.getLogger("offbeat")

BREATH = 0.5  # host seconds that the loop waits at most before it looks whether it is to stop


class LiveEngine:
    """Serves one strategy to sites. `interrupt` may be set at any time: the run stops with a checkpoint."""

    def __init__(
        self,
        strategy: Strategy,
        world: World,  # whoever is known before anybody joined; as a rule nobody
        transport: Transport,
        *,
        until: Until,
        layout: str = "",  # digest of the model's layout, which sites must have too
        code: str | None = None,  # digest of the rules; None: any
        evaluate: Evaluate | None = None,  # None: the server has no test data
        every: float = inf,  # seconds between evaluations
        gate: Gate | None = None,
        trace: Trace | None = None,
        roster: Roster | None = None,
        record: Record | None = None,
        checkpoints: Checkpoints | None = None,
        checkpoint_every: float = 30.0,
        min_sites: int = 1,
        patience: Patience = Patience(),
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trace, self.roster = trace or Trace(), roster or Roster()
        self.trace.patient = record is not None  # which has all that the trace has
        self.facts = Facts(
            strategy,
            world,
            transport,
            until=until,
            gate=gate,
            evaluate=evaluate,
            every=every,
            trace=self.trace,
            roster=self.roster,
            record=record,
            patience=patience,
            stopping=lambda: self.interrupt,
        )
        self.hearing = Hearing(self.facts, layout, code)
        self.coordinator, self.sites, self.opinions = self.facts.coordinator, self.facts.sites, self.facts.opinions
        self.transport, self.record = transport, record
        self.checkpoints, self.checkpoint_every = checkpoints, checkpoint_every
        self.until, self.patience, self.min_sites = until, patience, min_sites
        self.interrupt = False
        self._watch = watch
        self._monotonic, self._offset, self._since = clock, 0.0, clock()
        self._horizon = until.seconds if until.seconds is not None else inf
        self._ended: str | None = None
        self._start_of_record: int | None = None  # the file that the checkpoint in use begins with

    # ------------------------------------------------------------ running

    def run(self) -> Outcome:
        try:
            with one_thread():
                if self.record is not None:
                    self.record.begin(self._start_of_record)
                self._since = self._monotonic()
                self._look_out()
                cadence = Cadence(self.checkpoint_every, self._monotonic)
                while self.coordinator.reason is None and self._ended is None:
                    self._step()
                    self._between_events(cadence)
                return self.finish()
        finally:
            self.transport.close()
            if self.record is not None:
                self.record.close()

    def now(self) -> float:
        """Run time. It has not begun before enough sites are there, and does not go beyond the end."""
        return min(self._offset + self._monotonic() - self._since, self._horizon) if self.facts.started else 0.0

    def _step(self) -> None:
        """Hear what has come, then do what is due."""
        wait = min(self.facts.clock.upcoming(), self._horizon) - self.now() if self.facts.started else inf
        heard = self.transport.receive(min(BREATH, max(0.0, wait)))
        self.facts.clock.now = self.now()
        for one in heard:
            self.hearing.hear(one)
        if not self.facts.started:
            self._start()
        moment = self.now()  # what becomes due meanwhile waits until it was heard what has come
        while self.coordinator.reason is None and self.facts.clock.upcoming() <= moment:
            _, kind, who, ticket = self.facts.clock.heap[0]
            now = max(self.now(), self.facts.clock.now)
            self.facts.clock.pop()
            self.facts.clock.now = now
            self._handle(kind, who, ticket)
        if self.facts.started and self.coordinator.reason is None and self.now() >= self._horizon:
            self.facts.clock.now = self._horizon
            self._ended = "seconds"

    def _look_out(self) -> None:
        """After a server that died: whoever was there then may never come back to this one."""
        ledger, until = self.coordinator.ledger, self.facts.clock.now + self.patience.gone
        for job in ledger.open.values():
            self.facts.clock.push(until, LOST, job.client, job.ticket)
        for client in ledger.everyone():
            if ledger.idle(client):
                self.facts.clock.push(until, LOST, client)

    def _start(self) -> None:
        """When enough sites are there: to the strategy all of them come at once, in order of their numbers."""
        lobby = self.hearing.lobby
        if len(lobby) < self.min_sites:
            return
        self._since = self._monotonic()
        self.facts.begin(0.0)
        for client in sorted(lobby):
            self.facts.joined(self.facts.clock.now, client, lobby[client])
        lobby.clear()

    def _between_events(self, cadence: Cadence) -> None:
        if self._watch is not None and self._watch(self.status()):
            self.interrupt = True
        self.trace.keep_up()
        if self.interrupt:
            self._ended = INTERRUPTED
        elif self.facts.started and self.coordinator.reason is None and self.checkpoints is not None and cadence.due():
            with cadence.writing():
                try:
                    self.save()
                except (OffbeatError, OSError) as error:  # the record has all of it: there is another time
                    log.warning("no checkpoint could be written, the run goes on: %s", error)

    def finish(self) -> Outcome:
        """After the last event: sites say what they think of the model, and are told that it is over."""
        run, now, reason = self.coordinator, self.facts.clock.now, INTERRUPTED
        if run.reason is None and self._ended == INTERRUPTED:
            if self.facts.started:
                self.save()
        else:
            run.end(self._ended or INTERRUPTED)
            reason = run.reason or INTERRUPTED
            run.finish(now)
            run.model_holds()
            self.facts.evaluation.finish(now, run)
            self._last_opinions(now)
            self.trace.add(now, "stop", run.ledger.version, detail=reason)
            for address in [*self.sites.client, *self.hearing.latecomers]:
                self.transport.send(address, Farewell(f"the run has ended: {reason}"))
        self.trace.flush()
        p, found = run.progress, self.facts.evaluation.measured
        metrics = {**self.opinions.held.last, **found.metrics}
        return Outcome(
            reason, now, run.ledger.version, p.updates, run.model, metrics, p.server_seconds, found.server_bytes
        )

    def status(self) -> Status:
        ledger, now, updates = self.coordinator.ledger, self.now(), self.coordinator.progress.updates
        share = self.until.share(now, updates)
        metrics = {**self.opinions.held.last, **self.facts.evaluation.measured.metrics}
        here = tuple(sorted(self.sites.address))
        return Status(now, share, ledger.version, updates, len(ledger.open), ledger.age(), metrics, here)

    # ------------------------------------------------------------ what is due

    def _handle(self, kind: int, who: int, ticket: int) -> None:
        facts, run, now = self.facts, self.coordinator, self.facts.clock.now
        if kind == TIMER:
            facts.fired(now, facts.clock.fired(who))
        elif kind == LOST:
            self._expire(who, ticket)
        elif kind == READY:
            if who in run.ledger.absent and who in self.sites.address:
                facts.joined(now, who, run.claimed(who))
        else:
            asked = self.opinions.whom(self.sites.address, now, self.sites.wait)
            facts.pointed(now, asked)
            self._ask(now, asked)

    def _expire(self, client: int, ticket: int) -> None:
        """The last moment a ticket was waited for, unless it was answered, or its site came back meanwhile; without a
        ticket, an idle client.
        """
        run, now, wait = self.coordinator, self.facts.clock.now, self.sites.wait(client)
        job, here = run.ledger.open.get(ticket), client in self.sites.address
        if ticket == NOBODY and not here and run.ledger.idle(client):
            self.facts.left(now, client)
        if job is None:
            return
        if here and now < job.started + wait:  # it is waited for longer than when it was sent
            self.facts.clock.push(job.started + wait, LOST, client, ticket)
            return
        log.warning("%s: ticket %d is not waited for any longer", self.roster.name_of(client), ticket)
        # what it was sent, or its answer, may have been lost: one that is there is offered work again in any case
        self.facts.expired(now, ticket, *(("no answer in time", now + wait) if here else ("out of reach", inf)))

    # ------------------------------------------------------------ what sites think

    def _ask(self, now: float, asked: tuple[int, ...]) -> None:
        run = self.coordinator
        model_of = self.facts.judge.model_of(run.state, run.model, {})
        for client in asked if not run.fallen else ():
            question = Question(now, run.ledger.version, model_of(client))
            self.opinions.unanswered[client] = now, run.ledger.version
            self.transport.send(self.sites.address[client], question)

    def _last_opinions(self, now: float) -> None:
        self.opinions.close()
        run, asked = self.coordinator, self.opinions.whom(self.sites.address, inf, self.sites.wait)
        self.opinions.ask(now, run.ledger.version, run.progress.updates, () if run.fallen else asked)
        self._ask(now, asked)
        patient = self._monotonic() + self.patience.last
        while self.opinions.held.waiting and (left := patient - self._monotonic()) > 0 and not self.interrupt:
            for one in self.transport.receive(min(BREATH, left)):
                self.hearing.hear(one)
        self.opinions.close()

    # ------------------------------------------------------------ checkpoints

    def save(self) -> None:
        if self.checkpoints is None or not finite(self.coordinator.model):
            return
        self.trace.flush()
        self.facts.clock.now = max(self.facts.clock.now, self.now())
        start = 0 if self.record is None else self.record.turn()
        self.checkpoints.save(lambda put: live_checkpoint.tree(self.facts, put, start))
        if self.record is not None:
            self.record.settle(start)

    def restore(self) -> None:
        """Go back to the newest checkpoint, and hear again what was recorded since."""
        if self.checkpoints is not None and self.checkpoints.exist():
            saved = self.checkpoints.load(lambda tree, get: live_checkpoint.read(self.facts, tree, get))
            live_checkpoint.put_back(self.facts, saved)
            self._start_of_record = saved.record
        else:
            self.trace.clear()
        self.facts.hear_again(self._start_of_record or 0)
        self._offset = self.facts.clock.now
