"""What a run amounts to, read off its trace. `measures` says what is made of it in tables, pages and JSON."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from math import isfinite, nan
from pathlib import Path
from typing import Any

from offbeat.core.errors import RunError
from offbeat.engine import divergence
from offbeat.engine.trace import WORKER
from offbeat.engine.trace_file import read_only
from offbeat.engine.until import Target, higher_is_better
from offbeat.metrics import client_names, curves, strategy_notes
from offbeat.metrics.curves import Curve
from offbeat.training.survey import ACTIVE, EVERYONE, SLOW_CLASSES, SLOWEST, STRAGGLERS

DIRECTIONS = "higher_is_better"  # the fact that says of each metric whether it is, as JSON
SERVED = "served"  # the fact that a run was live, and with which model
UNFINISHED = "not finished"
ENDS = ("arrive", "refuse", "lost")  # how a ticket ends


@dataclass(frozen=True)
class Span:
    """One job: who trained, from when to when, and how it ended ('open': the run ended first)."""

    client: int
    started: float
    ended: float
    outcome: str


@dataclass(frozen=True)
class Summary:
    """One run in numbers. Times are virtual seconds, bytes are what models and extras would cost on a network."""

    ended: str
    seconds: float
    updates: int
    versions: int
    metrics: dict[str, float]
    time_to_target: float | None
    staleness_mean: float
    staleness_max: int
    bytes_down: int
    bytes_up: int
    idle_share: float
    clients: int
    refused: dict[str, int] = field(default_factory=dict)  # by the gate: reason -> how many
    rejected: int = 0  # by the strategy
    lost: int = 0
    late: int = 0
    duplicates: int = 0  # second copies of an upload
    server_seconds: float = nan  # host time inside the strategy
    server_bytes: float = nan  # the most the strategy's tensors took, looked at on the evaluation grid
    wall_seconds: float = nan  # host time of the run, over all its resumes
    worker: str | None = None  # who computed its jobs, over all its resumes
    client_memory: str | None = None  # the limit for what is kept of clients, where there was one
    # "acc/slowest", …: of groups of clients, on their own examples
    groups: dict[str, float] = field(default_factory=dict)
    # the metric a table shows, of each client on its own examples
    by_client: dict[int, float] = field(default_factory=dict)
    surveyed: str | None = None  # which examples these are
    # what the metrics are of: "clients" is the mean over clients, each on its own test examples
    # "sites" is that mean by how many test examples each has
    evaluated: str = "test"
    served: str | None = None  # of a live run, whose seconds are those of a clock on the wall: with which model
    # the data set in one line, with what its reader has to know: rows left out, a split of our own
    data: str | None = None
    variance: float = nan  # between active clients and stragglers
    best: float = nan  # of the metric a table shows, on the whole grid
    aulc: float = nan  # area under the learning curve, metric × days
    forgetting: float = nan  # of what the slowest quarter holds, between two updates of one of them
    higher_is_better: dict[str, bool] = field(default_factory=dict)  # of each metric, as the run says
    target: str | None = None  # what time_to_target is to; where there is one, None there says that it was not reached
    names: dict[int, str] = field(default_factory=dict)  # of clients that are called something
    notes: dict[str, float] = field(default_factory=dict)  # what the strategy noted, the mean of each
    learned: bool | None = None  # was the model ever better than at the start? None: it was not looked at twice

    def higher(self, metric: str) -> bool:
        return higher_is_better(metric, self.higher_is_better)

    @property
    def headline(self) -> str:
        """The metric a table shows."""
        return curves.headline(list(self.metrics))

    def of_group(self, group: str) -> float:
        return self.groups.get(f"{self.headline}/{group}", nan)

    @property
    def nothing(self) -> str | None:
        """Why there is nothing to look at in an ended run: its model is no better than the one it began with."""
        if self.ended == UNFINISHED or self.learned:
            return None
        refused = sum(self.refused.values())
        if self.updates == 0 and refused:
            why = f"all {refused} answers were refused, most for {next(iter(self.refused))}"
        elif self.updates == 0:
            more = [f"{count} {word}" for word, count in (("rejected", self.rejected), ("lost", self.lost)) if count]
            why = f"no update was applied in {self.seconds:.0f} seconds" + (f" ({', '.join(more)})" if more else "")
        elif self.versions == 0:
            why = f"the model was never changed (updates that arrived: {self.updates})"
        elif self.learned is None:
            return None
        else:
            why = f"the model was never better than at the start (updates that arrived: {self.updates})"
        return f"NOTHING WAS LEARNED: {why}"

    @property
    def warning(self) -> str | None:
        """What nobody should have to find in a table: most answers came to nothing."""
        refused = sum(self.refused.values())
        answers = self.updates + self.rejected + refused
        if 2 * refused <= answers:
            return None
        why = max(self.refused, key=self.refused.__getitem__)
        return (
            f"{refused} of {answers} answers were refused, {self.refused[why]} for {why}: few clients made this model"
        )

    @property
    def warnings(self) -> list[str]:
        """That, that nothing was learned, and that the run fell back to an earlier model."""
        fell = self.ended if divergence.ended(self.ended) else None
        refused = self.warning if self.updates or self.nothing is None else None  # else `nothing` says it
        return [line for line in (fell, self.nothing, refused) if line]

    def plain(self) -> dict[str, Any]:
        """For JSON: what is not a number becomes None."""
        made: dict[str, Any] = without_nan(asdict(self))
        return made


def without_nan(value: Any) -> Any:
    """JSON has neither nan nor infinity: None stands for them."""
    if isinstance(value, dict):
        return {str(k): without_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and not isfinite(value) else value


@contextmanager
def open_trace(path: Path) -> Iterator[sqlite3.Connection]:
    """A run's trace, for reading only; the run may still be going on."""
    if not path.is_file():
        raise RunError(f"{path.parent} is not a run folder: it has no {path.name}")
    try:
        with closing(read_only(path)) as db:
            yield db
    except sqlite3.Error as error:
        raise RunError(f"{path} is not a readable trace: {error}") from None


def curve(db: sqlite3.Connection, metric: str) -> Curve:
    rows = db.execute("SELECT now, value FROM metrics WHERE key = ? ORDER BY seq", (metric,)).fetchall()
    return Curve([now for now, _ in rows], [nan if value is None else value for _, value in rows])


def metric_names(db: sqlite3.Connection) -> list[str]:
    return [key for (key,) in db.execute("SELECT key FROM metrics GROUP BY key ORDER BY MIN(rowid)")]


def staleness(db: sqlite3.Connection) -> list[int]:
    """Of every update that arrived, in order."""
    return [u for (u,) in db.execute("SELECT version - base_version FROM trace WHERE kind = 'arrive' ORDER BY seq")]


def spans(db: sqlite3.Connection, end: float) -> list[Span]:
    """Every job, in the order of dispatch."""
    started: dict[int, tuple[int, float]] = {}
    ended: dict[int, tuple[float, str]] = {}
    for kind, client, ticket, now in db.execute(
        "SELECT kind, client, ticket, now FROM trace WHERE ticket IS NOT NULL ORDER BY seq"
    ):
        if kind == "dispatch":
            started[ticket] = (client, now)
        elif kind in ENDS:
            ended[ticket] = (now, kind)
    return [Span(client, now, *ended.get(ticket, (end, "open"))) for ticket, (client, now) in started.items()]


def directions(db: sqlite3.Connection) -> dict[str, bool]:
    """Of each metric whether higher is better; nothing of a run of before this was stored."""
    stored = db.execute("SELECT value FROM facts WHERE key = ?", (DIRECTIONS,)).fetchone()
    try:
        return {str(name): bool(higher) for name, higher in json.loads(stored[0]).items()} if stored else {}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise RunError(f"the trace's fact {DIRECTIONS} is damaged: {str(stored[0])[:40]!r}") from None


def time_to(db: sqlite3.Connection, target: Target | None) -> float | None:
    """The first point of the grid at which the target is reached."""
    if target is None:
        return None
    return curves.time_to(curve(db, target.metric), target.towards(directions(db)))


def summarize(db: sqlite3.Connection, clients: int, target: Target | None = None) -> Summary:
    facts = dict(db.execute("SELECT key, value FROM facts"))
    served = facts.get(SERVED)
    if served is not None:  # by whoever came, not by whom the experiment was written for
        clients = db.execute("SELECT COUNT(DISTINCT client) FROM trace WHERE kind = 'back'").fetchone()[0]
    last = (
        db.execute("SELECT MAX(now) FROM (SELECT now FROM trace UNION ALL SELECT now FROM metrics)").fetchone()[0]
        or 0.0
    )
    stop = db.execute("SELECT now, detail FROM trace WHERE kind = 'stop'").fetchone()
    seconds, ended = stop if stop else (last, UNFINISHED)
    kinds = Counter(dict(db.execute("SELECT kind, COUNT(*) FROM trace GROUP BY kind")))
    moved = dict(db.execute("SELECT kind, SUM(bytes) FROM trace WHERE bytes IS NOT NULL GROUP BY kind"))
    ages = staleness(db)
    values = _last_metrics(db)
    name, known = curves.headline(list(values)), directions(db)
    busy = sum(span.ended - span.started for span in spans(db, seconds))
    return Summary(
        ended=ended,
        seconds=seconds,
        updates=kinds["arrive"] - kinds["reject"],
        versions=db.execute("SELECT COUNT(*) FROM commits").fetchone()[0],
        metrics={key: value for key, value in values.items() if "/" not in key},
        time_to_target=time_to(db, target),
        staleness_mean=sum(ages) / len(ages) if ages else 0.0,
        staleness_max=max(ages, default=0),
        bytes_down=moved.get("dispatch", 0),
        bytes_up=sum(moved.get(kind, 0) for kind in ("arrive", "late", "duplicate", "refuse")),
        idle_share=max(0.0, 1 - busy / (clients * seconds)) if clients * seconds else 0.0,
        clients=clients,
        refused=dict(
            db.execute("SELECT detail, COUNT(*) FROM trace WHERE kind = 'refuse' GROUP BY detail ORDER BY 2 DESC")
        ),
        rejected=kinds["reject"],
        lost=kinds["lost"],
        late=kinds["late"],
        duplicates=kinds["duplicate"],
        server_seconds=float(facts.get("server_seconds", nan)),
        server_bytes=float(facts.get("server_bytes", nan)),
        wall_seconds=float(facts.get("wall_seconds", nan)),
        worker=facts.get(WORKER),
        client_memory=facts.get("client_memory"),
        groups={key: value for key, value in values.items() if "/" in key},
        by_client=per_client(db, name) if served is None else _as_they_answered(db, name),
        surveyed=facts.get("surveyed"),
        evaluated=facts.get("evaluated", "test"),
        served=served,
        data=facts.get("data"),
        variance=curves.variance(*(values.get(f"{name}/{group}", nan) for group in (EVERYONE, ACTIVE, STRAGGLERS))),
        best=curves.best(curve(db, name), higher_is_better(name, known)),
        aulc=curves.aulc(curve(db, name)),
        forgetting=curves.forgetting(curve(db, f"acc/{SLOW_CLASSES}"), arrivals(db, members(db, SLOWEST))),
        higher_is_better=known,
        target=None if target is None else str(target),
        names=client_names.names(db),
        notes=strategy_notes.means(db),
        learned=_learned([(curve(db, key), higher_is_better(key, known)) for key in {"loss", name} & values.keys()]),
    )


def _learned(measured: Sequence[tuple[Curve, bool]]) -> bool | None:
    """Did any of these get better than at its first point? `measured`: with which way is better."""
    twice = [(points.values, higher) for points, higher in measured if len(points.values) > 1]
    gained = (any(v > first if higher else v < first for v in later) for (first, *later), higher in twice)
    return any(gained) if twice else None


def per_client(db: sqlite3.Connection, metric: str) -> dict[int, float]:
    """Of each client on its own examples, when they were last asked."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'clients'").fetchone():
        return {}  # a run of an earlier version
    query = "SELECT client, value FROM clients WHERE key = ? AND seq = (SELECT MAX(seq) FROM clients) ORDER BY client"
    return {client: nan if value is None else value for client, value in db.execute(query, (metric,))}


def _as_they_answered(db: sqlite3.Connection, metric: str) -> dict[int, float]:
    """Of each site of a live run, which answer one after the other, about the last point that any answered for."""
    query = "SELECT client, value FROM clients WHERE key = ? AND now = (SELECT MAX(now) FROM clients) ORDER BY client"
    return {client: nan if value is None else value for client, value in db.execute(query, (metric,))}


def members(db: sqlite3.Connection, group: str) -> list[int]:
    """The clients of a group, as the run says at its end."""
    stored = db.execute("SELECT value FROM facts WHERE key = ?", (group,)).fetchone()
    return [int(client) for client in stored[0].split(",")] if stored else []


def arrivals(db: sqlite3.Connection, clients: Sequence[int]) -> dict[int, list[float]]:
    """When the updates of each of these clients arrived."""
    query = "SELECT now FROM trace WHERE kind = 'arrive' AND client = ? ORDER BY seq"
    return {client: [now for (now,) in db.execute(query, (client,))] for client in clients}


def _last_metrics(db: sqlite3.Connection) -> dict[str, float]:
    """At the time of the last evaluation; a survey of the clients at that time has rows of its own."""
    last = "SELECT now FROM metrics ORDER BY seq DESC LIMIT 1"
    rows = db.execute(f"SELECT key, value FROM metrics WHERE now = ({last}) ORDER BY seq, rowid")
    return {key: nan if value is None else value for key, value in rows}


def size(count: float) -> str:
    """A number of bytes, for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
