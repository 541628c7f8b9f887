"""The state of a live run, its facts and its checkpoints.

Facts are the methods in FACTS of this class or, with the orders that follow, of the coordinator. A fact is written to
the journal with its arguments before the strategy sees it; the state after a crash follows from these arguments alone.
Messages to sites are sent last: a server that is killed before has sent nothing, and the next one does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from math import inf, isfinite

from offbeat.core.errors import CheckpointError
from offbeat.core.jobs import TRAINING_SECONDS, Job, Result
from offbeat.core.protocol import SetTimer, Strategy, World
from offbeat.core.snapshot import Put, Tree
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.coordinator import Coordinator, Fact
from offbeat.engine.gate import Gate, Verdict
from offbeat.engine.live.journal import Journal, retry_while_disk_full
from offbeat.engine.live.site_scores import ScoreState, SiteScores
from offbeat.engine.live.sites import Connections, SiteIds, Timeouts
from offbeat.engine.live.transport import JobMessage, Scores, Transport
from offbeat.engine.model_evaluation import Evaluate, EvaluationSchedule, ModelEvaluator
from offbeat.engine.run_checkpoint import pack_checkpoint, read_checkpoint
from offbeat.engine.strategy_driver import Offer, Order
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.engine.virtual.event_heap import EVALUATE, LOST, NO_ID, READY, Clock

log = logging.getLogger("offbeat")

FACTS = ("begin", "answered", "expired", "unexpected_upload", "scores_received", "evaluation_due")
COORDINATOR_FACTS = ("joined", "examples_reported", "left", "timer_fired")
# fields of a checkpoint that a virtual run does not have; `journal_file` is the one with the facts that followed
CHECKPOINT_FIELDS = {
    "longest_round_trip": dict,
    "accepted": dict,
    "expired": dict,
    "site_scores": ScoreState,
    "journal_file": int,
}


class LiveState:
    """Coordinator, clock, connections and evaluation of a live run."""

    def __init__(
        self,
        strategy: Strategy,
        world: World,
        transport: Transport,
        *,
        until: Until,
        gate: Gate | None,
        evaluate: Evaluate | None,
        evaluate_every: float,
        trace: Trace,
        site_ids: SiteIds,
        journal: Journal | None,
        timeouts: Timeouts,
        stopping: Callable[[], bool],
    ) -> None:
        self.transport, self.trace, self.site_ids, self.journal = transport, trace, site_ids, journal
        self.timeouts, self.stopping = timeouts, stopping
        self.coordinator = Coordinator(
            strategy, world, until=until, gate=gate, trace=trace, journal=self._write, stop_when_hopeless=False
        )
        self.evaluator = ModelEvaluator(evaluate or (lambda model: {}), self.coordinator.driver.contract, world.layout)
        # without test data on the server the target is tested on the scores of sites
        limits = until if evaluate is not None else Until(until.seconds, until.updates)
        self.evaluation = EvaluationSchedule(self.evaluator, limits, trace, every=evaluate_every)
        self.site_scores = SiteScores(trace, until, only_measure=evaluate is None)
        self.clock = Clock()
        self.connections = Connections(timeouts)
        self.started = False  # run time passes
        self._replaying = False

    def begin(self, now: float, away: tuple[int, ...] = ()) -> None:
        """Start the run without the clients that are `away`, and schedule the first evaluation."""
        self.started = True
        self.clock.push(now, EVALUATE, NO_ID)
        self.carry_out(self.coordinator.begin(now, away))

    def answered(self, now: float, ticket: int, verdict: Verdict, back: float, size: int | None) -> None:
        """Report a site's answer, and record its round trip and training time."""
        run, job = self.coordinator, self.coordinator.ledger.open_jobs[ticket]
        updates = run.progress.updates
        orders = run.answered(now, ticket, verdict, back, size)
        if isinstance(verdict, Result) and TRAINING_SECONDS in verdict.extras:
            self.trace.note(now, ticket, {TRAINING_SECONDS: float(verdict.extras[TRAINING_SECONDS])})
        if isinstance(verdict, Result):  # the time of a failure says nothing about the next job
            self.connections.record_round_trip(job.client, now - job.started)
        else:
            name = self.site_ids.name_of(job.client)
            log.warning("%s: its answer to ticket %d is refused: %s", name, ticket, verdict)
        if run.progress.updates > updates:
            self.connections.accepted[job.client] = ticket
        self.carry_out(orders)

    def expired(self, now: float, ticket: int, why: str | None, back: float) -> None:
        """Report that a ticket is not waited for any longer, and remember when it was sent."""
        job = self.coordinator.ledger.open_jobs[ticket]
        orders = self.coordinator.expired(now, ticket, why, back)
        self.connections.expired[job.client] = ticket, job.started
        self.carry_out(orders)

    def unexpected_upload(self, now: float, client: int, ticket: int, how: str, size: int | None) -> None:
        """Report a late or duplicate answer, whose round trip counts for later timeouts."""
        self.carry_out(self.coordinator.unexpected_upload(now, client, ticket, how, size))
        self.connections.record_late_answer(client, ticket, now)

    def scores_received(self, client: int, scores: Scores) -> None:
        """Record metrics of a site; this fact has no time of its own."""
        self._write(("scores_received", (client, scores)))
        if self.site_scores.add_scores(client, scores):
            self.coordinator.driver.end("target")

    def evaluation_due(self, now: float, clients: tuple[int, ...]) -> None:
        """Evaluate at a point of the grid; these clients are asked too."""
        self._write(("evaluation_due", (now, clients)))
        run = self.coordinator
        if not run.driver.check_model():
            return
        if self.site_scores.close_point():
            run.driver.end("target")
        self.evaluation.evaluate_grid_point(now, run, inf)
        self.site_scores.open_point(now, run.ledger.version, run.progress.updates, clients)
        self.clock.push(self.evaluation.next_point_after(now), EVALUATE, NO_ID)

    def _write(self, fact: Fact) -> None:
        """Write a fact to the journal, except during a replay; wait while the disk is full."""
        journal = self.journal
        if journal is not None and not self._replaying:
            retry_while_disk_full(str(journal.folder), lambda: journal.append(fact), self.stopping)

    def replay_journal(self, start: int) -> None:
        """Repeat the facts from this journal file on; jobs are sent again when their sites reconnect."""
        self._replaying = True
        for name, values in self.journal.read_since(start) if self.journal is not None else ():
            if name not in FACTS + COORDINATOR_FACTS:
                raise CheckpointError(f"the record has a fact that this version does not know: {name}")
            if name != "scores_received":
                self.clock.now = max(self.clock.now, float(values[0]))
            if name == "timer_fired":
                self.clock.cancel_timer(values[1])
            elif name == "evaluation_due":
                self.clock.remove_kind(EVALUATE)
            if name in FACTS:
                getattr(self, name)(*values)
            else:
                self.carry_out(getattr(self.coordinator, name)(*values))
        self._replaying = False

    def carry_out(self, orders: list[Order]) -> None:
        """Send jobs and schedule their timeouts, timers and offers; a replay sends nothing."""
        for order in orders:
            if isinstance(order, Job):
                timeout = self.connections.answer_timeout(order.client)
                self.clock.push(order.started + timeout, LOST, order.client, order.ticket)
                if not self._replaying:
                    self.send_job(order)
            elif isinstance(order, SetTimer):
                self.clock.set_timer(order.key, order.at)
            elif isinstance(order, Offer):
                if isfinite(order.not_before):
                    self.clock.push(order.not_before, READY, order.client)
            else:
                self.clock.cancel_timer(order.key)

    def send_job(self, job: Job) -> None:
        """Send a job to its site; if it is not connected the job is sent when it reconnects."""
        address = self.connections.address.get(job.client)
        if address is None:
            self.clock.push(self.clock.now + self.timeouts.disconnected, LOST, job.client, job.ticket)
            return
        self.transport.send(address, JobMessage.from_job(job, self.connections.accepted.get(job.client)))

    def save(self, journal_file: int, put: Put) -> Tree:
        """Return a checkpoint that the facts from this journal file on follow."""
        fields = {
            "longest_round_trip": self.connections.longest_round_trip,
            "accepted": self.connections.accepted,
            "expired": self.connections.expired,
            "site_scores": self.site_scores.state,
            "journal_file": journal_file,
        }
        return pack_checkpoint(self.coordinator, self.trace, self.evaluation, self.clock, fields, put)

    def restore(self, checkpoints: Checkpoints) -> int:
        """Continue from the newest checkpoint; return the journal file with the facts that followed it."""
        saved = checkpoints.load(partial(read_checkpoint, self.coordinator, self.trace, CHECKPOINT_FIELDS))
        saved.restore(self.coordinator, self.trace, self.evaluation)
        self.clock, self.started, fields = saved.clock, True, saved.engine_fields
        self.connections.longest_round_trip = fields["longest_round_trip"]
        self.connections.accepted, self.connections.expired = fields["accepted"], fields["expired"]
        self.site_scores.state = fields["site_scores"]
        return int(fields["journal_file"])
