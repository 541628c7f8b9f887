"""The state of a live run, its facts and its checkpoints.

Each public method up to `evaluation_due` is a fact. It is written to the journal under the method's name, with its
arguments, before the strategy sees it; everything that must be the same after a crash follows from these arguments
alone. Messages to sites are sent last: a server that is killed before has sent nothing, and the next one does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite

from offbeat.core.errors import CheckpointError
from offbeat.core.jobs import TRAINING_SECONDS, Job, Result
from offbeat.core.protocol import SetTimer, Strategy, World
from offbeat.core.snapshot import Get, Put, Tree, expect_type, pack, unpack
from offbeat.engine.coordinator import Coordinator, CoordinatorState, Fact
from offbeat.engine.gate import Gate, Verdict
from offbeat.engine.live.journal import Journal, retry_while_disk_full
from offbeat.engine.live.site_scores import ScoreState, SiteScores
from offbeat.engine.live.sites import Connections, SiteIds, Timeouts
from offbeat.engine.live.transport import JobMessage, Scores, Transport
from offbeat.engine.model_evaluation import Evaluate, EvaluationSchedule, EvaluationState, ModelEvaluator
from offbeat.engine.strategy_driver import Offer, Order
from offbeat.engine.trace import Trace
from offbeat.engine.trace_file import TraceDigest
from offbeat.engine.until import Until
from offbeat.engine.virtual.event_heap import EVALUATE, LOST, NO_ID, READY, Clock

log = logging.getLogger("offbeat")

FACT_NAMES = (
    "begin", "joined", "examples_reported", "left", "answered", "expired", "unexpected_upload", "timer_fired",
    "scores_received", "evaluation_due",
)  # fmt: skip


@dataclass(frozen=True)
class LiveCheckpoint:
    """A checkpoint that matches the run and its trace."""

    coordinator: CoordinatorState
    evaluation: EvaluationState
    clock: Clock
    longest_round_trip: dict[int, float]
    accepted: dict[int, int]
    expired: dict[int, tuple[int, float]]
    site_scores: ScoreState
    journal_file: int  # with the facts that followed
    rows: int
    digest: TraceDigest


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
        self.transport = transport
        self.trace = trace
        self.site_ids = site_ids
        self.journal = journal
        self.timeouts = timeouts
        self.stopping = stopping
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

    # ------------------------------------------------------------ facts about sites

    def begin(self, now: float, away: tuple[int, ...] = ()) -> None:
        self.started = True
        self.clock.push(now, EVALUATE, NO_ID)
        self._carry_out(self.coordinator.begin(now, away))

    def joined(self, now: float, client: int, num_examples: int) -> None:
        self._carry_out(self.coordinator.joined(now, client, num_examples))

    def examples_reported(self, now: float, client: int, num_examples: int) -> None:
        self._carry_out(self.coordinator.examples_reported(now, client, num_examples))

    def left(self, now: float, client: int) -> None:
        self._carry_out(self.coordinator.left(now, client))

    def answered(self, now: float, ticket: int, verdict: Verdict, back: float, size: int | None) -> None:
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
        self._carry_out(orders)

    def expired(self, now: float, ticket: int, why: str | None, back: float) -> None:
        job = self.coordinator.ledger.open_jobs[ticket]
        orders = self.coordinator.expired(now, ticket, why, back)
        self.connections.expired[job.client] = ticket, job.started
        self._carry_out(orders)

    def unexpected_upload(self, now: float, client: int, ticket: int, how: str, size: int | None) -> None:
        self._carry_out(self.coordinator.unexpected_upload(now, client, ticket, how, size))
        self.connections.record_late_answer(client, ticket, now)

    # ------------------------------------------------------------ facts about timers and evaluation

    def timer_fired(self, now: float, key: str) -> None:
        self._carry_out(self.coordinator.timer_fired(now, key))

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

    # ------------------------------------------------------------ journal

    def _write(self, fact: Fact) -> None:
        journal = self.journal
        if journal is not None and not self._replaying:
            retry_while_disk_full(str(journal.folder), lambda: journal.append(fact), self.stopping)

    def replay_journal(self, start: int) -> None:
        """Repeat the facts from this journal file on; jobs are sent again when their sites reconnect."""
        self._replaying = True
        for name, values in self.journal.read_since(start) if self.journal is not None else ():
            if name not in FACT_NAMES:
                raise CheckpointError(f"the record has a fact that this version does not know: {name}")
            if name != "scores_received":
                self.clock.now = max(self.clock.now, float(values[0]))
            if name == "timer_fired":
                self.clock.cancel_timer(values[1])
            elif name == "evaluation_due":
                self.clock.remove_kind(EVALUATE)
            getattr(self, name)(*values)
        self._replaying = False

    # ------------------------------------------------------------ orders

    def _carry_out(self, orders: list[Order]) -> None:
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

    # ------------------------------------------------------------ checkpoints

    def save(self, put: Put, journal_file: int) -> Tree:
        return {
            "rows": self.trace.seq,
            "digest": self.trace.digest_so_far.as_dict(),
            "clock": self.clock.save(put),
            "evaluation": self.evaluation.save(put),
            "longest_round_trip": pack(self.connections.longest_round_trip, put),
            "accepted": pack(self.connections.accepted, put),
            "expired": pack(self.connections.expired, put),
            "site_scores": pack(self.site_scores.state, put),
            "journal_file": journal_file,
            **self.coordinator.save(put),
        }

    def read(self, tree: Tree, get: Get) -> LiveCheckpoint:
        """Read a checkpoint and check that the run and its trace match it; nothing changes here."""
        rows = expect_type(int, tree["rows"], "rows")
        return LiveCheckpoint(
            coordinator=self.coordinator.read(tree, get),
            evaluation=expect_type(EvaluationState, unpack(tree["evaluation"], get), "evaluation"),
            clock=Clock.restored(tree["clock"], get),
            longest_round_trip=expect_type(dict, unpack(tree["longest_round_trip"], get), "longest_round_trip"),
            accepted=expect_type(dict, unpack(tree["accepted"], get), "accepted"),
            expired=expect_type(dict, unpack(tree["expired"], get), "expired"),
            site_scores=expect_type(ScoreState, unpack(tree["site_scores"], get), "site_scores"),
            journal_file=expect_type(int, tree["journal_file"], "journal_file"),
            rows=rows,
            digest=self.trace.verify(rows, tree["digest"]),
        )

    def restore(self, saved: LiveCheckpoint) -> None:
        """Continue from a checkpoint."""
        self.coordinator.restore(saved.coordinator)
        self.evaluation.restore(saved.evaluation)
        self.clock, self.started = saved.clock, True
        self.connections.longest_round_trip = saved.longest_round_trip
        self.connections.accepted, self.connections.expired = saved.accepted, saved.expired
        self.site_scores.state = saved.site_scores
        self.trace.truncate(saved.rows, saved.digest)
