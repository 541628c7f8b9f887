"""Timeline of one client in a run, read from the trace in one pass: its jobs, waits, absences and update weights.

Rows are ordered by `seq` within an instant, and a row follows the event that caused it. The cause of a dispatch is the
last event before it, and an update is part of the first version that is committed after its arrival.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from offbeat.core.strategies.ca2fl import CA2FL
from offbeat.core.strategies.fedadam import FedAdam
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedavgm import FedAvgM
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.fedprox import FedProx
from offbeat.core.strategies.fedpsa import FedPSA
from offbeat.engine import REFUSALS_BEFORE_BACKOFF
from offbeat.metrics import JOB_ENDS

MAX_OTHERS = 50  # stored updates of other clients per version
DEPARTURE_REASONS = ("left", "out of reach")  # a job lost for these reasons means that its client is away
AVERAGING_STRATEGIES = (FedAvg, FedProx, FedAvgM, FedAdam)  # weigh updates by their examples
BUFFERING_STRATEGIES = (*AVERAGING_STRATEGIES, FedBuff, CA2FL, FedPSA)  # a version has all updates since the last one
IdleEnd = Literal["work", "left", "back", "end"]

ROWS_QUERY = """
SELECT now, kind, COALESCE(client, -1), COALESCE(ticket, -1), version, base_version, steps, examples, detail, seq
FROM trace
UNION ALL SELECT now, 'commit', -1, -1, version, NULL, NULL, NULL, NULL, seq FROM commits ORDER BY seq
"""


class TraceRow(NamedTuple):
    """A row of the trace, or a commit."""

    now: float
    kind: str
    client: int  # -1: none
    ticket: int  # -1: none
    version: int
    base_version: int | None
    steps: int | None
    examples: int | None
    detail: str | None
    seq: int


class OtherUpdate(NamedTuple):
    """An update of another client that went into the same version."""

    client: int
    staleness: int
    examples: int


class PrecedingEvent(NamedTuple):
    """The event that caused a dispatch or commit: a job that ended, or a timer."""

    kind: str
    at: float
    client: int | None
    sent: float | None
    detail: str | None


@dataclass
class ClientJob:
    """A job of the client, from its dispatch to the version that includes its update."""

    ticket: int
    sent: float
    base_version: int
    ended: float | None = None
    outcome: Literal["open", "arrive", "reject", "refuse", "lost"] = "open"
    version: int | None = None  # current version when the job ended
    steps: int | None = None
    examples: int | None = None
    reason: str | None = None
    committed: int | None = None  # the first version after the arrival
    committed_at: float | None = None
    committed_by: PrecedingEvent | None = None
    other_count: int = 0  # other updates in that version
    others: list[OtherUpdate] = field(default_factory=list)  # the first MAX_OTHERS of them
    extra_uploads: list[tuple[str, float]] = field(default_factory=list)  # late and duplicate uploads: kind and time

    @property
    def staleness(self) -> int | None:
        """Return the number of versions committed while the client worked; None without an update."""
        if self.outcome not in ("arrive", "reject") or self.version is None:
            return None
        return self.version - self.base_version


@dataclass
class IdlePeriod:
    """A period without work."""

    start: float
    kind: Literal["waiting", "away", "held off"] = "waiting"
    stop: float = 0.0
    ended_by: IdleEnd = "end"
    cause: PrecedingEvent | None = None  # of the dispatch that ended it
    times_passed_over: int = 0  # earlier instants at which other clients were sent work
    max_at_work: int = 0  # the largest number of other clients at work meanwhile
    clients_at_work: list[tuple[int, float]] = field(default_factory=list)  # at the end of the run: client, sent when

    @property
    def seconds(self) -> float:
        """Return the length of the period."""
        return self.stop - self.start


@dataclass
class ClientTotals:
    """Totals of one client, for comparison with the others."""

    updates: int = 0
    staleness: int = 0
    working: float = 0.0
    answer_seconds: float = 0.0  # duration of all answered jobs
    answers: int = 0


@dataclass
class ClientTimeline:
    """All jobs and idle periods of a client, with the totals of every client."""

    client: int
    end: float  # of the run, or of its trace so far
    ended: str | None  # reason; None: the run is in progress
    jobs: list[ClientJob]
    idle_periods: list[IdlePeriod]
    totals: dict[int, ClientTotals]
    mentioned: bool  # the trace has a row about this client

    def time_shares(self) -> dict[str, float]:
        """Return the shares of the time spent working, waiting and away."""
        seconds = {
            "working": sum((self.end if job.ended is None else job.ended) - job.sent for job in self.jobs),
            "waiting": sum(period.seconds for period in self.idle_periods if period.kind == "waiting"),
            "away": sum(period.seconds for period in self.idle_periods if period.kind != "waiting"),
        }
        return {kind: value / (self.end or 1.0) for kind, value in seconds.items()}


def read_client_timeline(db: sqlite3.Connection, client: int) -> ClientTimeline:
    """Read the timeline of one client from the trace."""
    reader = _TimelineReader(client)
    for row in db.execute(ROWS_QUERY):
        reader.add_row(TraceRow(*row))
    last = db.execute("SELECT MAX(now) FROM (SELECT now FROM trace UNION ALL SELECT now FROM metrics)").fetchone()[0]
    return reader.finish(float(last or 0.0))


class _TimelineReader:
    """Build the timeline of one client from the rows of a trace in order."""

    def __init__(self, client: int) -> None:
        self.client = client
        self.jobs: list[ClientJob] = []
        self.idle_periods: list[IdlePeriod] = []
        self.totals: defaultdict[int, ClientTotals] = defaultdict(ClientTotals)
        self.open: dict[int, tuple[int, float]] = {}  # ticket -> client and dispatch time
        self.uncommitted: list[tuple[int, OtherUpdate]] = []  # tickets and updates since the last commit
        self.uncommitted_jobs: list[ClientJob] = []  # of this client
        self.idle: IdlePeriod | None = IdlePeriod(0.0)
        self.cause: PrecedingEvent | None = None  # at the same instant a job's end takes precedence over timers
        self.consecutive_refusals = 0
        self.others_sent_at = -1.0  # last dispatch to another client
        self.mentioned = False
        self.ended: str | None = None

    def add_row(self, row: TraceRow) -> None:
        """Add the next row: first its effect on all clients, then on this one."""
        if row.kind == "commit":
            self._commit(row)
            return
        if row.kind == "stop":
            self.ended = row.detail
            return
        if row.kind in JOB_ENDS:
            self._end_job(row)
        elif row.kind == "timer" and not (self.cause and self.cause.at == row.now):
            self.cause = PrecedingEvent("timer", row.now, None, None, row.detail)
        elif row.kind == "dispatch":
            self.open[row.ticket] = row.client, row.now
            to_other = row.client != self.client and row.now != self.others_sent_at
            if to_other and self.idle is not None and self.idle.kind == "waiting":
                self.others_sent_at = row.now
                self.idle.times_passed_over += 1
        elif row.kind == "reject":
            self.uncommitted = [pair for pair in self.uncommitted if pair[0] != row.ticket]
            self.totals[row.client].updates -= 1
        if row.client == self.client:
            self.mentioned = True
            self._add_own_row(row)
        if self.idle is not None:
            self.idle.max_at_work = max(self.idle.max_at_work, len(self.open))

    def finish(self, end: float) -> ClientTimeline:
        """End everything that is still open, and return the timeline."""
        if self.idle is not None:
            if self.idle.kind == "waiting":
                self.idle.clients_at_work = sorted(self.open.values(), key=lambda pair: pair[1])[:MAX_OTHERS]
            self._end_idle(end, "end")
        for client, since in self.open.values():
            self.totals[client].working += end - since
        return ClientTimeline(self.client, end, self.ended, self.jobs, self.idle_periods, self.totals, self.mentioned)

    def _end_job(self, row: TraceRow) -> None:
        """Add the job of any client to its totals, and remember it as the cause of what follows."""
        _, sent = self.open.pop(row.ticket, (None, row.now))
        self.cause = PrecedingEvent(row.kind, row.now, row.client, sent, row.detail)
        totals = self.totals[row.client]
        totals.working += row.now - sent
        if row.kind == "arrive":
            staleness = row.version - (row.base_version or 0)
            totals.updates += 1
            totals.staleness += staleness
            totals.answer_seconds += row.now - sent
            totals.answers += 1
            self.uncommitted.append((row.ticket, OtherUpdate(row.client, staleness, row.examples or 0)))

    def _commit(self, row: TraceRow) -> None:
        """Assign all updates since the last commit to the new version."""
        for job in self.uncommitted_jobs:
            if job.outcome == "arrive":
                others = [update for ticket, update in self.uncommitted if ticket != job.ticket]
                job.committed, job.committed_at, job.committed_by = row.version, row.now, self.cause
                job.other_count, job.others = len(others), others[:MAX_OTHERS]
        self.uncommitted_jobs.clear()
        self.uncommitted.clear()

    def _add_own_row(self, row: TraceRow) -> None:
        """Add a row about this client."""
        if row.kind == "dispatch":
            if self.idle is not None:
                self.idle.cause = self.cause if self.cause is not None and self.cause.at == row.now else None
                if self.others_sent_at == row.now:  # sent work at the same instant as others: not passed over
                    self.idle.times_passed_over -= 1
                self._end_idle(row.now, "work")
            self.jobs.append(ClientJob(row.ticket, row.now, row.version))
        elif row.kind in JOB_ENDS:
            self._end_own_job(row)
        elif row.kind == "reject" and self.jobs:
            self.jobs[-1].outcome, self.jobs[-1].reason = "reject", row.detail
        elif row.kind == "left":
            self._end_idle(row.now, "left")
            self.idle = IdlePeriod(row.now, "away")
        elif row.kind == "back":
            self._come_back(row.now)
        elif row.kind in ("late", "duplicate"):
            for job in self.jobs:
                if job.ticket == row.ticket:
                    job.extra_uploads.append((row.kind, row.now))

    def _end_own_job(self, row: TraceRow) -> None:
        """Record how a job of this client ended, and begin an idle period."""
        job = next((job for job in reversed(self.jobs) if job.ticket == row.ticket), None)
        if job is None:
            return
        job.ended, job.version, job.reason = row.now, row.version, row.detail
        job.steps, job.examples = row.steps, row.examples
        job.outcome = "arrive" if row.kind == "arrive" else "refuse" if row.kind == "refuse" else "lost"
        self.consecutive_refusals = self.consecutive_refusals + 1 if row.kind == "refuse" else 0
        if row.kind == "arrive":
            self.uncommitted_jobs.append(job)
        self.idle = IdlePeriod(row.now, "away" if row.kind == "lost" and row.detail in DEPARTURE_REASONS else "waiting")
        self.others_sent_at = -1.0

    def _come_back(self, now: float) -> None:
        """End an absence, which began with the last idle period if the trace has no row for it.

        After several refusals in a row the same row ends a back-off instead.
        """
        if self.jobs and self.jobs[-1].outcome == "open":
            return  # it continues its job
        if self.idle is not None:
            if self.idle.kind == "waiting":
                self.idle.kind = "held off" if self.consecutive_refusals >= REFUSALS_BEFORE_BACKOFF else "away"
            self._end_idle(now, "back")
        self.idle = IdlePeriod(now)
        self.others_sent_at = -1.0

    def _end_idle(self, now: float, reason: IdleEnd) -> None:
        """End the current idle period; one without duration is dropped."""
        if self.idle is not None and now > self.idle.start:
            self.idle.stop, self.idle.ended_by = now, reason
            self.idle_periods.append(self.idle)
        self.idle = None


@dataclass(frozen=True)
class UpdateWeight:
    """A weight of an update: its name, value and derivation."""

    name: str
    value: float
    text: str


def update_weights(strategy: object, job: ClientJob) -> list[UpdateWeight]:
    """Return the weights of an accepted update as far as the strategy's rule determines them from the trace.

    The trace gives the staleness, the examples and the other updates of the same version. Nothing is estimated.
    """
    u, others = job.staleness, job.others if job.other_count == len(job.others) else None
    if u is None or job.outcome != "arrive":
        return []
    if isinstance(strategy, AVERAGING_STRATEGIES):
        if job.committed is None or others is None:
            return []
        examples = job.examples or 0
        total = examples + sum(other.examples for other in others)
        text = f"{examples} of {total} examples: {examples / (total or 1):.0%} of the average"
        return [UpdateWeight("share", examples / total, text)] if total else []
    discount = _discount(strategy, u)
    if discount is None:
        return []
    weights = [UpdateWeight("discount", discount, f"s({u}) = {discount:.3g} times that of a fresh update")]
    if isinstance(strategy, FedAsync):
        alpha, unknown = strategy.alpha * discount, strategy.client_weight
        share = f", times the client's share ({unknown}), which the trace does not contain" if unknown else ""
        meaning = f"this update makes up {alpha:.0%} of the new model"
        if strategy.mode != "mix" or unknown:
            meaning = "factor of the update in the new model" if strategy.mode == "mix" else "factor of the added delta"
        formula = f"α s({u}) = {strategy.alpha:g} × {discount:.3g} = {alpha:.3g}"
        weights.append(UpdateWeight("alpha", alpha, f"{formula}{share}: {meaning}"))
    if isinstance(strategy, FedBuff) and others and not strategy.client_weight:
        weight_sum = discount + sum(_discount(strategy, other.staleness) or 0.0 for other in others)
        part = discount / weight_sum if weight_sum else 0.0
        weights.append(UpdateWeight("share", part, f"{part:.0%} of the total weight of {1 + len(others)} updates"))
    return weights


def _discount(strategy: object, staleness: int) -> float | None:
    """Return the strategy's factor for this staleness; None if it has no such rule."""
    rule = getattr(strategy, "staleness", None)
    return float(rule(staleness)) if callable(rule) else None
