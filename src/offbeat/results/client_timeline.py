"""One client's life in a run, read off the trace in one pass: its jobs, its waits, its absences, and what the others
did meanwhile.

An instant has an order (`seq`), and a row follows the event that it answers. So what made the server send work is the
last event before it, and an update is in the first version that is committed after it arrived.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from offbeat.engine.progress import PATIENCE

ENDS = ("arrive", "refuse", "lost")  # how a ticket ends
NAMED = 50  # updates that share a version with one, at most
LEFT = ("left", "out of reach")  # of a lost ticket: its client is gone
Ended = Literal["work", "left", "back", "end"]

ROWS = """
SELECT seq, now, kind, client, ticket, version, base_version, steps, examples, detail FROM trace
UNION ALL SELECT seq, now, 'commit', NULL, NULL, version, NULL, NULL, NULL, NULL FROM commits ORDER BY seq
"""


class Row(NamedTuple):
    seq: int
    now: float
    kind: str
    client: int | None
    ticket: int | None
    version: int
    base_version: int | None
    steps: int | None
    examples: int | None
    detail: str | None


class Update(NamedTuple):
    """Of another client, that went the same way."""

    client: int
    staleness: int
    examples: int


class Cause(NamedTuple):
    """What happened last before something: whose ticket ended how, after how long; or a timer."""

    kind: str
    at: float
    client: int | None
    sent: float | None
    detail: str | None


@dataclass
class Job:
    """A ticket of this client: sent, and what became of it."""

    ticket: int
    sent: float
    base: int  # the version it was sent
    ended: float | None = None
    outcome: Literal["open", "arrive", "reject", "refuse", "lost"] = "open"
    version: int | None = None  # the server's when it ended
    steps: int | None = None
    examples: int | None = None
    why: str | None = None
    committed: int | None = None  # the first version after it arrived,
    committed_at: float | None = None
    committed_by: Cause | None = None  # on whose answer,
    heard_with: int = 0  # how many other updates had come since the version before,
    others: list[Update] = field(default_factory=list)  # and some of them
    strays: list[tuple[str, float]] = field(default_factory=list)  # uploads nobody waited for

    @property
    def staleness(self) -> int | None:
        return None if self.outcome not in ("arrive", "reject") or self.version is None else self.version - self.base


@dataclass
class Rest:
    """A stretch of time without work."""

    start: float
    kind: Literal["waiting", "away", "held off"] = "waiting"
    stop: float = 0.0
    ended_by: Ended = "end"
    cause: Cause | None = None  # of the work that ended it
    passed: int = 0  # instants before that at which others were sent work
    at_work: int = 0  # others at most, meanwhile
    still: list[tuple[int, float]] = field(default_factory=list)  # at the end of the run: who works, and since when

    @property
    def seconds(self) -> float:
        return self.stop - self.start


@dataclass
class Peer:
    """What there is to compare with, of every client."""

    updates: int = 0
    staleness: int = 0
    working: float = 0.0
    answered: float = 0.0  # seconds of the jobs that were
    answers: int = 0


@dataclass
class Life:
    client: int
    end: float  # of the run, or of what there is of it
    ended: str | None  # why; None while it goes on
    jobs: list[Job]
    rests: list[Rest]
    peers: dict[int, Peer]
    seen: bool  # does any row name this client?

    def total(self, *kinds: str) -> float:
        return sum(rest.seconds for rest in self.rests if rest.kind in kinds)

    @property
    def working(self) -> float:
        return sum((self.end if job.ended is None else job.ended) - job.sent for job in self.jobs)


def read(db: sqlite3.Connection, client: int) -> Life:
    reader = _Reader(client)
    for row in _rows(db):
        reader.hear(row)
    last = db.execute("SELECT MAX(now) FROM (SELECT now FROM trace UNION ALL SELECT now FROM metrics)").fetchone()[0]
    return reader.finish(float(last or 0.0))


def _rows(db: sqlite3.Connection) -> Iterator[Row]:
    return map(Row._make, db.execute(ROWS))


class _Reader:
    def __init__(self, client: int) -> None:
        self.client = client
        self.jobs: list[Job] = []
        self.rests: list[Rest] = []
        self.peers: dict[int, Peer] = {}
        self.open: dict[int, tuple[int, float]] = {}  # ticket -> its client, since when
        self.fresh: list[tuple[int, Update]] = []  # ticket and update, since the last commit
        self.waiting_for: list[Job] = []  # own updates that are in no version yet
        self.rest: Rest | None = Rest(0.0)
        self.cause: Cause | None = (
            None  # the last ticket that ended, or timer; a ticket goes before timers of its instant
        )
        self.refused = 0  # own, in a row
        self.sent_at = -1.0  # when others were last sent work
        self.seen = False
        self.ended: str | None = None

    def hear(self, row: Row) -> None:
        if row.kind == "commit":
            return self._commit(row)
        if row.kind == "stop":
            self.ended = row.detail
            return None
        if row.kind in ENDS:
            self._over(row)
        elif row.kind == "timer" and not (self.cause and self.cause.at == row.now):
            self.cause = Cause("timer", row.now, None, None, row.detail)
        elif row.kind == "dispatch" and row.ticket is not None and row.client is not None:
            self.open[row.ticket] = row.client, row.now
            self._others_sent(row)
        elif row.kind == "reject":
            self.fresh = [pair for pair in self.fresh if pair[0] != row.ticket]
            self._peer(row).updates -= 1
        if row.client == self.client:
            self.seen = True
            self._own(row)
        if self.rest is not None:
            self.rest.at_work = max(self.rest.at_work, len(self.open))
        return None

    def finish(self, end: float) -> Life:
        if self.rest is not None:
            if self.rest.kind == "waiting":
                self.rest.still = sorted(self.open.values(), key=lambda one: one[1])[:NAMED]
            self._close_rest(end, "end")
        for client, since in self.open.values():
            self.peers.setdefault(client, Peer()).working += end - since
        return Life(self.client, end, self.ended, self.jobs, self.rests, self.peers, self.seen)

    # ------------------------------------------------------------ everyone

    def _peer(self, row: Row) -> Peer:
        assert row.client is not None
        return self.peers.setdefault(row.client, Peer())

    def _over(self, row: Row) -> None:
        """A ticket ended."""
        _, sent = self.open.pop(row.ticket if row.ticket is not None else -1, (None, row.now))
        self.cause = Cause(row.kind, row.now, row.client, sent, row.detail)
        peer = self._peer(row)
        peer.working += row.now - sent
        if row.kind == "arrive" and row.ticket is not None and row.client is not None:
            age = row.version - (row.base_version or 0)
            peer.updates, peer.staleness = peer.updates + 1, peer.staleness + age
            peer.answered, peer.answers = peer.answered + row.now - sent, peer.answers + 1
            self.fresh.append((row.ticket, Update(row.client, age, row.examples or 0)))

    def _commit(self, row: Row) -> None:
        for job in self.waiting_for:
            if job.outcome == "arrive":
                others = [update for ticket, update in self.fresh if ticket != job.ticket]
                job.committed, job.committed_at, job.committed_by = row.version, row.now, self.cause
                job.heard_with, job.others = len(others), others[:NAMED]
        self.waiting_for.clear()
        self.fresh.clear()

    def _others_sent(self, row: Row) -> None:
        if self.rest is None or self.rest.kind != "waiting" or row.client == self.client or row.now == self.sent_at:
            return
        self.sent_at = row.now
        self.rest.passed += 1

    # ------------------------------------------------------------ the client itself

    def _own(self, row: Row) -> None:
        if row.kind == "dispatch":
            self._sent(row)
        elif row.kind in ENDS:
            self._answered(row)
        elif row.kind == "reject" and self.jobs:
            self.jobs[-1].outcome, self.jobs[-1].why = "reject", row.detail
        elif row.kind == "left":
            self._close_rest(row.now, "left")
            self.rest = Rest(row.now, "away")
        elif row.kind == "back":
            self._back(row.now)
        elif row.kind in ("late", "duplicate"):
            for job in self.jobs:
                if job.ticket == row.ticket:
                    job.strays.append((row.kind, row.now))

    def _sent(self, row: Row) -> None:
        if self.rest is not None:
            same = self.cause is not None and self.cause.at == row.now
            self.rest.cause = self.cause if same else None
            if self.sent_at == row.now:  # others are sent work in the same breath: it was not passed over for them
                self.rest.passed -= 1
            self._close_rest(row.now, "work")
        assert row.ticket is not None
        self.jobs.append(Job(row.ticket, row.now, row.version))

    def _answered(self, row: Row) -> None:
        job = next((job for job in reversed(self.jobs) if job.ticket == row.ticket), None)
        if job is None:
            return
        job.ended, job.version, job.steps, job.examples, job.why = (
            row.now, row.version, row.steps, row.examples, row.detail
        )  # fmt: skip
        job.outcome = "arrive" if row.kind == "arrive" else "refuse" if row.kind == "refuse" else "lost"
        self.refused = self.refused + 1 if row.kind == "refuse" else 0
        if row.kind == "arrive":
            self.waiting_for.append(job)
        self.rest = Rest(row.now, "away" if row.kind == "lost" and row.detail in LEFT else "waiting")
        self.sent_at = -1.0

    def _back(self, now: float) -> None:
        """It can be reached again. If nobody said that it left, it could not be since it was last heard of; or it was
        not to be offered work for a while, after several refusals.
        """
        if self.jobs and self.jobs[-1].outcome == "open":
            return  # it came back to its work
        if self.rest is not None:
            if self.rest.kind == "waiting":
                self.rest.kind = "held off" if self.refused >= PATIENCE else "away"
            self._close_rest(now, "back")
        self.rest = Rest(now)
        self.sent_at = -1.0

    def _close_rest(self, now: float, how: Ended) -> None:
        if self.rest is not None and now > self.rest.start:
            self.rest.stop, self.rest.ended_by = now, how
            self.rests.append(self.rest)
        self.rest = None
