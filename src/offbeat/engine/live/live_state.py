"""The facts of a live run: as they happen, and as they are heard again by a server that comes back.

Each method is a fact. It is in the record before the strategy hears of it, under the method's name and with its values,
and whatever is to be the same after a crash follows here from these values alone. What goes out to sites goes out last:
a server that is killed before has told nobody, and the next one sends it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf, isfinite

from offbeat.core.errors import CheckpointError
from offbeat.core.jobs import TRAINING_SECONDS, Job, Result
from offbeat.core.protocol import SetTimer, Strategy, World
from offbeat.engine.coordinator import Coordinator, Fact
from offbeat.engine.evaluation_schedule import Evaluation
from offbeat.engine.gate import Gate, Verdict
from offbeat.engine.live.connections import Patience, Reach
from offbeat.engine.live.disk_space import patiently
from offbeat.engine.live.journal import Record
from offbeat.engine.live.site_ids import Roster
from offbeat.engine.live.site_scores import Opinions
from offbeat.engine.live.transport import Assignment, Scores, Transport
from offbeat.engine.model_evaluation import Evaluate, Judge
from offbeat.engine.strategy_driver import Offer, Order
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.engine.virtual.event_heap import EVALUATE, LOST, NOBODY, READY, Clock

log = logging.getLogger("offbeat")

NAMES = ("begin", "joined", "claims", "left", "answered", "expired", "strayed", "fired", "scored", "pointed")


class Facts:
    """And what they are about: the conversation, who can be reached, what is due, what sites think."""

    def __init__(
        self,
        strategy: Strategy,
        world: World,
        transport: Transport,
        *,
        until: Until,
        gate: Gate | None,
        evaluate: Evaluate | None,
        every: float,
        trace: Trace,
        roster: Roster,
        record: Record | None,
        patience: Patience,
        stopping: Callable[[], bool],
    ) -> None:
        self.transport, self.trace, self.roster, self.record = transport, trace, roster, record
        self.patience, self.stopping = patience, stopping
        self.coordinator = Coordinator(
            strategy, world, until=until, gate=gate, trace=trace, journal=self._write_down, gives_up=False
        )
        self.judge = Judge(evaluate or (lambda model: {}), self.coordinator.contract, world.layout)
        measured = until if evaluate is not None else Until(until.seconds, until.updates)  # else sites find a target
        self.evaluation = Evaluation(self.judge, measured, trace, every=every)
        self.opinions = Opinions(trace, until, alone=evaluate is None)
        self.clock, self.sites = Clock(), Reach(patience)
        self.started = False  # is run time passing?
        self._replaying = False

    # ------------------------------------------------------------ of sites

    def begin(self, now: float, away: tuple[int, ...] = ()) -> None:
        self.started = True
        self.clock.push(now, EVALUATE, NOBODY)
        self._carry_out(self.coordinator.begin(now, away))

    def joined(self, now: float, client: int, num_examples: int) -> None:
        self._carry_out(self.coordinator.joined(now, client, num_examples))

    def claims(self, now: float, client: int, num_examples: int) -> None:
        self._carry_out(self.coordinator.claims(now, client, num_examples))

    def left(self, now: float, client: int) -> None:
        self._carry_out(self.coordinator.left(now, client))

    def answered(self, now: float, ticket: int, verdict: Verdict, back: float, size: int | None) -> None:
        run, job = self.coordinator, self.coordinator.ledger.open[ticket]
        updates = run.progress.updates
        orders = run.answered(now, ticket, verdict, back, size)
        if isinstance(verdict, Result) and TRAINING_SECONDS in verdict.extras:
            self.trace.note(now, ticket, {TRAINING_SECONDS: float(verdict.extras[TRAINING_SECONDS])})
        if isinstance(verdict, Result):  # a failure takes no time, and says nothing of the next job
            self.sites.lasted(job.client, now - job.started)
        else:
            log.warning("%s: its answer to ticket %d is refused: %s", self.roster.name_of(job.client), ticket, verdict)
        if run.progress.updates > updates:
            self.sites.accepted[job.client] = ticket
        self._carry_out(orders)

    def expired(self, now: float, ticket: int, why: str | None, back: float) -> None:
        job = self.coordinator.ledger.open[ticket]
        orders = self.coordinator.expired(now, ticket, why, back)
        self.sites.expired[job.client] = ticket, job.started
        self._carry_out(orders)

    def strayed(self, now: float, client: int, ticket: int, how: str, size: int | None) -> None:
        self._carry_out(self.coordinator.strayed(now, client, ticket, how, size))
        self.sites.late(client, ticket, now)

    def fired(self, now: float, key: str) -> None:
        self._carry_out(self.coordinator.fired(now, key))

    # ------------------------------------------------------------ of the model

    def scored(self, client: int, scores: Scores) -> None:
        """What a site thinks of it; this has no time of its own."""
        self._write_down(("scored", (client, scores)))
        if self.opinions.heard(client, scores):
            self.coordinator.end("target")

    def pointed(self, now: float, asked: tuple[int, ...]) -> None:
        """A point of the evaluation grid; these sites are asked too."""
        self._write_down(("pointed", (now, asked)))
        run = self.coordinator
        if not run.model_holds():
            return
        if self.opinions.close():
            run.end("target")
        self.evaluation.point(now, run, inf)
        self.opinions.ask(now, run.ledger.version, run.progress.updates, asked)
        self.clock.push(self.evaluation.after(now), EVALUATE, NOBODY)

    # ------------------------------------------------------------ the record

    def _write_down(self, fact: Fact) -> None:
        """Durable, before anybody acts on it."""
        record = self.record
        if record is not None and not self._replaying:
            patiently(str(record.folder), lambda: record.append(fact), self.stopping)

    def hear_again(self, start: int) -> None:
        """What was recorded from that file on. What followed then follows again; orders are booked, and carried out
        when their sites are back.
        """
        self._replaying = True
        for name, values in self.record.since(start) if self.record is not None else ():
            if name not in NAMES:
                raise CheckpointError(f"the record has a fact that this version does not know: {name}")
            if name != "scored":
                self.clock.now = max(self.clock.now, float(values[0]))
            if name == "fired":
                self.clock.cancel_timer(values[1])
            elif name == "pointed":
                self.clock.drop(EVALUATE)
            getattr(self, name)(*values)
        self._replaying = False

    # ------------------------------------------------------------ orders

    def _carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            if isinstance(order, Job):
                self.clock.push(order.started + self.sites.wait(order.client), LOST, order.client, order.ticket)
                if not self._replaying:
                    self.push(order)
            elif isinstance(order, SetTimer):
                self.clock.set_timer(order.key, order.at)
            elif isinstance(order, Offer):
                if isfinite(order.not_before):
                    self.clock.push(order.not_before, READY, order.client)
            else:
                self.clock.cancel_timer(order.key)

    def push(self, job: Job) -> None:
        """To a site that is there; one that is not is sent its open ticket when it comes, if it comes."""
        address = self.sites.address.get(job.client)
        if address is None:
            self.clock.push(self.clock.now + self.patience.gone, LOST, job.client, job.ticket)
            return
        self.transport.send(address, Assignment.of(job, self.sites.accepted.get(job.client)))
