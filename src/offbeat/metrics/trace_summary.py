"""Summary of a run, computed from its trace, and the queries behind it.

`measures` selects which of these numbers appear in tables, pages and JSON.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from math import isfinite, nan
from pathlib import Path

from offbeat.core.errors import RunError
from offbeat.engine import WORKER_FACT, Target, higher_is_better, is_divergence, open_read_only
from offbeat.metrics import client_names, curves
from offbeat.metrics.client_names import Key, read_json_fact
from offbeat.metrics.curves import Curve
from offbeat.training import ACTIVE, ALL_CLIENTS, SLOW_CLASSES, SLOWEST, STRAGGLERS

DIRECTIONS = "higher_is_better"  # fact: for each metric whether higher is better, as JSON
SERVED = "served"  # fact: the run was live, and what model it served
UNFINISHED = "not finished"
JOB_ENDS = ("arrive", "refuse", "lost")
NOTE_PREFIX = "note/"  # marks a strategy's notes among metrics


@dataclass(frozen=True)
class JobSpan:
    """Client, start, end and outcome of one job."""

    client: int
    started: float
    ended: float
    outcome: str  # one of JOB_ENDS, or "open": the run ended first


@dataclass(frozen=True)
class Summary:
    """The numbers of one run: times in virtual seconds, bytes as models and extras would take on a network."""

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
    refused: dict[str, int] = field(default_factory=dict)  # by the gate: reason -> count
    rejected: int = 0  # by the strategy
    lost: int = 0
    late: int = 0
    duplicates: int = 0  # second copies of an upload
    server_seconds: float = nan  # host time inside the strategy
    server_bytes: float = nan  # peak size of the strategy's tensors, measured on the evaluation grid
    wall_seconds: float = nan  # host time of the run, including resumed attempts
    worker: str | None = None  # the workers that computed the jobs, including resumed attempts
    client_memory: str | None = None  # limit for per-client server state
    groups: dict[str, float] = field(default_factory=dict)  # "acc/slowest", …: groups of clients, on their own examples
    by_client: dict[int, float] = field(default_factory=dict)  # headline metric of each client on its own examples
    surveyed: str | None = None  # the kind of examples that groups and clients are evaluated on
    # "clients": metrics are means over clients, each on its own test examples; "sites": weighted by their test examples
    evaluated: str = "test"
    served: str | None = None  # live run, with seconds of a wall clock: the model it served
    data: str | None = None  # one line about the data set: dropped rows, our own split
    variance: float = nan  # between active clients and stragglers
    best: float = nan  # of the headline metric, on the whole grid
    aulc: float = nan  # area under the learning curve, metric × days
    forgetting: float = nan  # on the classes of the slowest quarter, between two updates of one of its clients
    higher_is_better: dict[str, bool] = field(default_factory=dict)  # of each metric, as recorded by the run
    target: str | None = None  # of time_to_target; None there then means that the target was not reached
    names: dict[int, str] = field(default_factory=dict)  # of clients that have one
    notes: dict[str, float] = field(default_factory=dict)  # mean of each note of the strategy
    learned: bool | None = None  # the model was once better than at the start; None: evaluated fewer than two times

    def higher(self, metric: str) -> bool:
        """Return True if higher values of this metric are better."""
        return higher_is_better(metric, self.higher_is_better)

    @property
    def headline(self) -> str:
        """Return the metric that tables show."""
        return curves.headline_metric(list(self.metrics))

    def of_group(self, group: str) -> float:
        """Return the headline metric of a group of clients; nan if it was not evaluated."""
        return self.groups.get(f"{self.headline}/{group}", nan)

    @property
    def nothing_learned(self) -> str | None:
        """Return the reason why an ended run has a model no better than its initial one, or None."""
        if self.ended == UNFINISHED or self.learned:
            return None
        refused = sum(self.refused.values())
        if self.updates == 0 and refused:
            why = f"all {refused} answers were refused, most for {next(iter(self.refused))}"
        elif self.updates == 0:
            counts = {"rejected": self.rejected, "lost": self.lost}
            failures = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
            why = f"no update was applied in {self.seconds:.0f} seconds" + (f" ({failures})" if failures else "")
        elif self.versions == 0:
            why = f"the model was never changed ({self.updates} updates arrived)"
        elif self.learned is None:
            return None
        else:
            why = f"the model was never better than at the start ({self.updates} updates arrived)"
        return f"NOTHING WAS LEARNED: {why}"

    @property
    def refusal_warning(self) -> str | None:
        """Return a warning if the gate refused most updates."""
        refused = sum(self.refused.values())
        answers = self.updates + self.rejected + refused
        if 2 * refused <= answers:
            return None
        why = max(self.refused, key=self.refused.__getitem__)
        counts = f"{refused} of {answers} answers were refused, {self.refused[why]} for {why}"
        return f"{counts}: the model is based on few updates"

    @property
    def warnings(self) -> list[str]:
        """Warn that the run fell back to an earlier model, learned nothing, or had most updates refused."""
        fell_back = self.ended if is_divergence(self.ended) else None
        refused = self.refusal_warning if self.updates or self.nothing_learned is None else None  # or it says the same
        return [line for line in (fell_back, self.nothing_learned, refused) if line]

    def as_json(self) -> dict[str, object]:
        """Return all fields for JSON."""
        return json_object(asdict(self))


def json_object(values: Mapping[Key, object]) -> dict[str, object]:
    """Return a mapping for JSON, with None instead of nan and infinity."""
    return {str(key): without_nan(value) for key, value in values.items()}


def without_nan(value: object) -> object:
    """Replace nan and infinity, which JSON does not have, by None."""
    if isinstance(value, Mapping):
        return json_object(value)
    if isinstance(value, (list, tuple)):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


@contextmanager
def open_trace(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a trace read-only; the run may still be in progress."""
    if not path.is_file():
        raise RunError(f"{path.parent} is not a run folder: it has no {path.name}")
    try:
        with closing(open_read_only(path)) as db:
            yield db
    except sqlite3.Error as error:
        raise RunError(f"{path} is not a readable trace: {error}") from None


def read_curve(db: sqlite3.Connection, metric: str) -> Curve:
    """Read a metric on the evaluation grid."""
    rows = db.execute("SELECT now, value FROM metrics WHERE key = ? ORDER BY seq", (metric,)).fetchall()
    return Curve([now for now, _ in rows], [nan if value is None else value for _, value in rows])


def metric_names(db: sqlite3.Connection) -> list[str]:
    """Return the recorded metrics in the order of their first values."""
    return [key for (key,) in db.execute("SELECT key FROM metrics GROUP BY key ORDER BY MIN(rowid)")]


def staleness_values(db: sqlite3.Connection) -> list[int]:
    """Return the staleness of each update that arrived, in order."""
    return [u for (u,) in db.execute("SELECT version - base_version FROM trace WHERE kind = 'arrive' ORDER BY seq")]


def job_spans(db: sqlite3.Connection, end: float) -> list[JobSpan]:
    """Return all jobs in the order of their dispatch."""
    started: dict[int, tuple[int, float]] = {}
    ended: dict[int, tuple[float, str]] = {}
    query = "SELECT kind, client, ticket, now FROM trace WHERE ticket IS NOT NULL ORDER BY seq"
    for kind, client, ticket, now in db.execute(query):
        if kind == "dispatch":
            started[ticket] = (client, now)
        elif kind in JOB_ENDS:
            ended[ticket] = (now, kind)
    return [JobSpan(client, now, *ended.get(ticket, (end, "open"))) for ticket, (client, now) in started.items()]


def metric_directions(db: sqlite3.Connection) -> dict[str, bool]:
    """Return, for each metric, whether higher is better; empty if the run did not record it."""
    return read_json_fact(db, DIRECTIONS, lambda name, higher: (str(name), bool(higher)))


def time_to_target(db: sqlite3.Connection, target: Target | None) -> float | None:
    """Return the first time on the evaluation grid at which the target is reached."""
    if target is None:
        return None
    return curves.time_to_reach(read_curve(db, target.metric), target.with_direction(metric_directions(db)))


def summarize(db: sqlite3.Connection, clients: int, target: Target | None = None) -> Summary:
    """Compute the summary of a run, finished or not; `clients` is the size of its population."""
    facts = dict(db.execute("SELECT key, value FROM facts"))
    served = facts.get(SERVED)
    if served is not None:  # counts the sites that joined, not those the experiment names
        clients = db.execute("SELECT COUNT(DISTINCT client) FROM trace WHERE kind = 'back'").fetchone()[0]
    (last,) = db.execute("SELECT MAX(now) FROM (SELECT now FROM trace UNION ALL SELECT now FROM metrics)").fetchone()
    stop = db.execute("SELECT now, detail FROM trace WHERE kind = 'stop'").fetchone()
    seconds, ended = stop or (last or 0.0, UNFINISHED)
    kinds = Counter(dict(db.execute("SELECT kind, COUNT(*) FROM trace GROUP BY kind")))
    moved = dict(db.execute("SELECT kind, SUM(bytes) FROM trace WHERE bytes IS NOT NULL GROUP BY kind"))
    refused = "SELECT detail, COUNT(*) FROM trace WHERE kind = 'refuse' GROUP BY detail ORDER BY 2 DESC"
    notes = "SELECT key, AVG(value) FROM notes WHERE value NOT NULL GROUP BY key ORDER BY MIN(rowid)"
    ages = staleness_values(db)
    values = _last_metrics(db)
    name, known = curves.headline_metric(list(values)), metric_directions(db)
    headline = read_curve(db, name)
    busy = sum(span.ended - span.started for span in job_spans(db, seconds))
    return Summary(
        ended=ended,
        seconds=seconds,
        updates=kinds["arrive"] - kinds["reject"],
        versions=db.execute("SELECT COUNT(*) FROM commits").fetchone()[0],
        metrics={key: value for key, value in values.items() if "/" not in key},
        time_to_target=time_to_target(db, target),
        staleness_mean=sum(ages) / len(ages) if ages else 0.0,
        staleness_max=max(ages, default=0),
        bytes_down=moved.get("dispatch", 0),
        bytes_up=sum(moved.get(kind, 0) for kind in ("arrive", "late", "duplicate", "refuse")),
        idle_share=max(0.0, 1 - busy / (clients * seconds)) if clients * seconds else 0.0,
        clients=clients,
        refused=dict(db.execute(refused)),
        rejected=kinds["reject"],
        lost=kinds["lost"],
        late=kinds["late"],
        duplicates=kinds["duplicate"],
        server_seconds=float(facts.get("server_seconds", nan)),
        server_bytes=float(facts.get("server_bytes", nan)),
        wall_seconds=float(facts.get("wall_seconds", nan)),
        worker=facts.get(WORKER_FACT),
        client_memory=facts.get("client_memory"),
        groups={key: value for key, value in values.items() if "/" in key},
        by_client=_client_values(db, name, "seq" if served is None else "now"),
        surveyed=facts.get("surveyed"),
        evaluated=facts.get("evaluated", "test"),
        served=served,
        data=facts.get("data"),
        variance=curves.variance(*(values.get(f"{name}/{group}", nan) for group in (ALL_CLIENTS, ACTIVE, STRAGGLERS))),
        best=curves.best_value(headline, higher_is_better(name, known)),
        aulc=curves.aulc(headline),
        forgetting=curves.forgetting(read_curve(db, f"acc/{SLOW_CLASSES}"), _arrival_times(db, SLOWEST)),
        higher_is_better=known,
        target=None if target is None else str(target),
        names=client_names.read_names(db),
        notes=dict(db.execute(notes)),
        learned=_learned(
            [(read_curve(db, key), higher_is_better(key, known)) for key in {"loss", name} & values.keys()]
        ),
    )


def _learned(measured: Sequence[tuple[Curve, bool]]) -> bool | None:
    """Return whether a curve was ever better than at its first point, given whether higher is better for each."""
    usable = [(curve.values, higher) for curve, higher in measured if len(curve.values) > 1]
    improved = (any(v > first if higher else v < first for v in later) for (first, *later), higher in usable)
    return any(improved) if usable else None


def _client_values(db: sqlite3.Connection, metric: str, point: str) -> dict[int, float]:
    """Return the metric of each client at the last survey; sites of a live run report in rows of the same `now`."""
    last = f"(SELECT MAX({point}) FROM clients)"
    rows = db.execute(
        f"SELECT client, value FROM clients WHERE key = ? AND {point} = {last} ORDER BY client", (metric,)
    )
    return {client: nan if value is None else value for client, value in rows}


def group_members(db: sqlite3.Connection, group: str) -> list[int]:
    """Return the clients of a group, as recorded at the end of the run."""
    stored = db.execute("SELECT value FROM facts WHERE key = ?", (group,)).fetchone()
    return [int(client) for client in stored[0].split(",")] if stored else []


def _arrival_times(db: sqlite3.Connection, group: str) -> dict[int, list[float]]:
    """Return the arrival times of the updates of each client of a group."""
    query = "SELECT now FROM trace WHERE kind = 'arrive' AND client = ? ORDER BY seq"
    return {client: [now for (now,) in db.execute(query, (client,))] for client in group_members(db, group)}


def _last_metrics(db: sqlite3.Connection) -> dict[str, float]:
    """Return the metrics at the time of the last evaluation, including a survey of the clients at that time."""
    last = "SELECT now FROM metrics ORDER BY seq DESC LIMIT 1"
    rows = db.execute(f"SELECT key, value FROM metrics WHERE now = ({last}) ORDER BY seq, rowid")
    return {key: nan if value is None else value for key, value in rows}


def format_bytes(count: float) -> str:
    """Format a number of bytes with its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def notes_on_grid(db: sqlite3.Connection, grid: Sequence[int], after: int = -1) -> list[dict[str, float]]:
    """Return the mean of each note since the previous grid point, for each point of the evaluation grid.

    The grid holds rows (`seq`) of the trace; `after` is the row of the point before the first.
    """
    sums: list[dict[str, tuple[float, int]]] = [{} for _ in grid]
    rows = db.execute("SELECT seq, key, value FROM notes WHERE seq > ? AND value NOT NULL ORDER BY rowid", (after,))
    for seq, key, value in rows:
        index = bisect_left(grid, seq)
        if index < len(grid):
            total, count = sums[index].get(key, (0.0, 0))
            sums[index][key] = total + value, count + 1
    return [{NOTE_PREFIX + key: total / count for key, (total, count) in point.items()} for point in sums]
