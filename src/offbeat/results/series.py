"""What figures and pages draw, read off the traces of one or several methods, each over some seeds."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from offbeat.core.errors import RunError
from offbeat.engine.until import Target
from offbeat.experiment.run.execution import Run
from offbeat.experiment.spec.config import Experiment, is_pooled
from offbeat.metrics import strategy_notes, trace_summary
from offbeat.metrics.trace_summary import Summary
from offbeat.results import palette, timelines
from offbeat.results.palette import Style
from offbeat.results.timelines import Lanes

Floats = NDArray[np.float64]
LANES = 1000  # in all pictures together: pages stay small
SHOWN = 100  # clients at most in one, from the fastest to the slowest
EARLY = 0.25  # of a run: what comes later decides where an axis begins
COUNTED = 10_000  # clients up to which those count who never appear in a trace


@dataclass(frozen=True)
class Course:
    """One run on its evaluation grid."""

    seconds: Floats
    updates: Floats  # that had been accepted by then
    moved: Floats  # bytes
    values: dict[str, Floats]  # by metric, and what the strategy noted


@dataclass(frozen=True)
class Band:
    """A metric over seeds: mean, lowest and highest at each point; `x` is the mean of what it is drawn against."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Method:
    name: str
    style: Style
    runs: list[Run]
    seeds: list[int]
    experiments: list[Experiment]
    summaries: list[Summary]
    courses: list[Course]
    staleness: dict[int, int]  # of all seeds: staleness -> updates
    heard: list[dict[int, int]]  # of each seed, which has a world of its own: client -> updates that were accepted
    lanes: Lanes  # of the first seed

    @property
    def pooled(self) -> bool:
        """Is there one client who has everything?"""
        return is_pooled(self.experiments[0].strategy)

    @property
    def seconds(self) -> Floats:
        """All points of all seeds' grids; they share one, but for a run that ended early."""
        return np.unique(np.concatenate([course.seconds for course in self.courses]))

    def stacked(self, what: str) -> Floats:
        """Seeds × points: seconds, updates, moved, or a metric. Of a run that ended early the last value stands."""
        grid = self.seconds
        if what == "seconds":
            return np.tile(grid, (len(self.courses), 1))
        return np.stack([_on(grid, course, what) for course in self.courses])

    def band(self, metric: str, against: str = "seconds") -> Band:
        values = np.ma.masked_invalid(self.stacked(metric))
        x = self.stacked(against).mean(axis=0)
        return Band(x, *(found.filled(nan) for found in (values.mean(0), values.min(0), values.max(0))))


@dataclass(frozen=True)
class Series:
    """All there is to draw."""

    title: str
    metric: str  # the one a table shows
    higher: bool  # is more of it better?
    target: Target | None
    methods: list[Method]
    clients: list[int]  # fastest first
    names: Mapping[int, str]  # of clients that have one

    @property
    def clock(self) -> str:
        """What seconds are: of a live run those of a clock on the wall."""
        return "virtual seconds" if self.methods[0].summaries[0].served is None else "served seconds"

    def name(self, client: int) -> str:
        return self.names.get(client, str(client))


def collect(runs: Mapping[str, Sequence[Run]], title: str, names: Mapping[int, str] | None = None) -> Series:
    """Of each method's runs those that have begun, finished or not."""
    begun = {name: [run for run in given if run.trace_file.is_file()] for name, given in runs.items()}
    begun = {name: given for name, given in begun.items() if given}
    if not begun:
        raise RunError("no run has begun: there is nothing to draw")
    clients = _by_speed([given[0] for given in begun.values()])
    shown = timelines.some(clients, min(SHOWN, max(20, LANES // len(begun))))
    looks = palette.styles(begun)
    methods = [_method(name, given, looks[name], shown) for name, given in begun.items()]
    first = methods[0].summaries[0]
    experiment = methods[0].experiments[0]
    target = experiment.until.target or experiment.target
    target = target.towards(first.higher_is_better) if target else None
    metric = next((s.headline for m in methods for s in m.summaries if s.metrics), first.headline)
    if names is None:
        names = next((method.runs[0].names() for method in methods if not method.pooled), {})
    return Series(title, metric, first.higher(metric), target, methods, clients, names)


def _method(name: str, runs: list[Run], style: Style, shown: list[int]) -> Method:
    experiments, summaries = [run.experiment() for run in runs], [run.summary() for run in runs]
    courses, ages, heard = [], Counter[int](), []
    for number, run in enumerate(runs):
        with trace_summary.open_trace(run.trace_file) as db:
            courses.append(course(db))
            ages.update(trace_summary.staleness(db))
            heard.append(accepted(db))
            if number == 0:
                whose = [0] if is_pooled(experiments[0].strategy) else shown
                drawn = timelines.read(db, whose, summaries[0].seconds)
    seeds = [experiment.seed for experiment in experiments]
    return Method(name, style, runs, seeds, experiments, summaries, courses, dict(sorted(ages.items())), heard, drawn)


def _by_speed(runs: Sequence[Run]) -> list[int]:
    """Every client of these runs, fastest first."""
    found, seen = [], set[int]()
    for run in runs:
        experiment = run.experiment()
        if is_pooled(experiment.strategy) and len(runs) > 1:
            continue
        with trace_summary.open_trace(run.trace_file) as db:
            found.append(timelines.paces(db))
            seen.update(client for (client,) in db.execute("SELECT DISTINCT client FROM trace WHERE client >= 0"))
            served = db.execute("SELECT 1 FROM facts WHERE key = ?", (trace_summary.SERVED,)).fetchone()
        if experiment.population <= COUNTED and not served:  # live it is who came
            seen.update(range(experiment.population))
    return timelines.by_speed(seen, found)


def course(db: sqlite3.Connection) -> Course:
    points: dict[int, tuple[float, int]] = {}
    values: dict[str, dict[int, float]] = {}
    for seq, now, updates, key, value in db.execute("SELECT seq, now, updates, key, value FROM metrics ORDER BY seq"):
        if "/" not in key:
            points[seq] = now, updates
            values.setdefault(key, {})[seq] = nan if value is None else value
    for seq, noted in zip(points, strategy_notes.on_grid(db, list(points)), strict=True):
        for key, value in noted.items():
            values.setdefault(key, {})[seq] = value
    travelled = db.execute("SELECT seq, bytes FROM trace WHERE bytes IS NOT NULL ORDER BY seq").fetchall()
    sums = np.concatenate([[0.0], np.cumsum([size for _, size in travelled], dtype=np.float64)])
    before = np.searchsorted([seq for seq, _ in travelled], list(points))
    return Course(
        np.array([now for now, _ in points.values()], dtype=np.float64),
        np.array([updates for _, updates in points.values()], dtype=np.float64),
        sums[before] if points else np.zeros(0),
        {key: np.array([of.get(seq, nan) for seq in points]) for key, of in values.items()},
    )


def accepted(db: sqlite3.Connection) -> dict[int, int]:
    """How many updates of each client counted."""
    kept = "ticket NOT IN (SELECT ticket FROM trace WHERE kind = 'reject')"
    return dict(db.execute(f"SELECT client, COUNT(*) FROM trace WHERE kind = 'arrive' AND {kept} GROUP BY client"))


def _on(grid: Floats, course: Course, what: str) -> Floats:
    given = getattr(course, what) if what in ("updates", "moved") else course.values.get(what)
    if given is None or not len(given):
        return np.full(len(grid), nan)
    made: Floats = np.interp(grid, course.seconds, given)
    return made


def axis(series: Series, metric: str | None = None) -> tuple[float, float] | None:
    """Where the axis of a metric begins and ends, so that differences show.

    From the worst mean that any method has after the first quarter of the run (what is worse was early on, and is cut
    off) to the best that any seed has then, and the target; a twentieth of that is left free on both sides. None where
    there are no numbers.
    """
    metric = metric or series.metric
    found: list[float] = []
    for method in series.methods:
        band = method.band(metric)
        late = band.x >= EARLY * max(band.x, default=0.0)
        found += [*band.mean[late], *(band.high if _higher(series, metric) else band.low)[late]]
    if series.target is not None and series.target.metric == metric:
        found.append(series.target.value)
    finite = [value for value in found if np.isfinite(value)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    room = (high - low) / 20 or abs(high) / 20 or 0.05
    return low - room, high + room


def _higher(series: Series, metric: str) -> bool:
    return series.methods[0].summaries[0].higher(metric)
