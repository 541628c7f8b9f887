"""The data that figures and pages draw, read from the traces of one or several methods."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np

from offbeat.core.errors import RunError, escape_unprintable, format_count
from offbeat.engine import Target
from offbeat.experiment.run import Run
from offbeat.experiment.spec import Experiment, is_pooled
from offbeat.metrics import SERVED, Summary, notes_on_grid, open_trace, staleness_values
from offbeat.results import palette, timelines
from offbeat.results.palette import MethodStyle
from offbeat.results.timelines import ClientLanes, Floats

MAX_LANES = 1000  # of all methods together, so that pages stay small
MAX_SHOWN_CLIENTS = 100  # per method, from the fastest to the slowest
EARLY_SHARE = 0.25  # of a run; values before that do not extend the axis
MAX_COUNTED_CLIENTS = 10_000  # larger populations count only clients in a trace


@dataclass(frozen=True)
class RunCurves:
    """The curves of one run on its evaluation grid."""

    seconds: Floats
    updates: Floats  # accepted so far
    moved: Floats  # bytes so far
    values: dict[str, Floats]  # by metric or note of the strategy


@dataclass(frozen=True)
class SeedBand:
    """Mean, minimum and maximum over seeds at each point."""

    seconds: Floats
    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class MethodRuns:
    """The runs of one method over seeds."""

    name: str
    style: MethodStyle
    runs: list[Run]
    seeds: list[int]
    experiments: list[Experiment]
    summaries: list[Summary]
    curves: list[RunCurves]
    staleness: dict[int, int]  # over all seeds: staleness -> number of updates
    accepted: list[dict[int, int]]  # by seed: client -> accepted updates
    lanes: ClientLanes  # of the first seed

    @property
    def pooled(self) -> bool:
        """Return True if one client holds all data."""
        return is_pooled(self.experiments[0].strategy)

    @property
    def seconds(self) -> Floats:
        """Return all points of the seeds' grids, which differ only if a run ended early."""
        return np.unique(np.concatenate([curves.seconds for curves in self.curves]))

    def stacked(self, quantity: str) -> Floats:
        """Return seeds × points of seconds, updates, moved or a metric; a run that ended early keeps its last value."""
        grid = self.seconds
        if quantity == "seconds":
            return np.tile(grid, (len(self.curves), 1))
        rows = []
        for curves in self.curves:
            quantities = {"updates": curves.updates, "moved": curves.moved, **curves.values}
            values = quantities.get(quantity, np.zeros(0))
            rows.append(np.interp(grid, curves.seconds, values) if len(values) else np.full(len(grid), nan))
        return np.stack(rows)

    def band(self, metric: str) -> SeedBand:
        """Return mean, minimum and maximum of a metric over the seeds; nan where no seed has a value."""
        values = np.ma.masked_invalid(self.stacked(metric))
        return SeedBand(self.seconds, *(row.filled(nan) for row in (values.mean(0), values.min(0), values.max(0))))


@dataclass(frozen=True)
class FigureSeries:
    """All data that figures and pages draw."""

    title: str
    metric: str  # the headline metric
    higher: bool  # higher is better
    target: Target | None
    methods: list[MethodRuns]
    clients: list[int]  # fastest first
    names: Mapping[int, str]  # of clients that have one

    @property
    def clock(self) -> str:
        """Return the label of the time axis; a live run has wall clock seconds."""
        return "virtual seconds" if self.methods[0].summaries[0].served is None else "served seconds"

    def client_name(self, client: int) -> str:
        """Return the name of a client, or its number."""
        return self.names.get(client, str(client))


def collect_series(runs: Mapping[str, Sequence[Run]], names: Mapping[int, str] | None = None) -> FigureSeries:
    """Read all runs that have started, finished or not; by default, the names of clients are those of the first run."""
    started = {name: [run for run in seeds if run.trace_file.is_file()] for name, seeds in runs.items()}
    started = {name: seeds for name, seeds in started.items() if seeds}
    if not started:
        raise RunError("no run has started: there is nothing to draw")
    clients = _clients_by_speed([seeds[0] for seeds in started.values()])
    shown = timelines.sample_clients(clients, min(MAX_SHOWN_CLIENTS, max(20, MAX_LANES // len(started))))
    styles = palette.method_styles(started)
    methods = [_read_method_runs(name, seeds, styles[name], shown) for name, seeds in started.items()]
    first, experiment = methods[0].summaries[0], methods[0].experiments[0]
    target = experiment.until.target or experiment.target
    target = target.with_direction(first.higher_is_better) if target else None
    metric = next((s.headline for m in methods for s in m.summaries if s.metrics), first.headline)
    if names is None:
        names = next((method.runs[0].client_names() for method in methods if not method.pooled), {})
    title = _describe_runs(methods, metric)
    return FigureSeries(title, metric, first.higher(metric), target, methods, clients, names)


def _describe_runs(methods: Sequence[MethodRuns], metric: str) -> str:
    """Return a title: the experiment, the metric and the seeds."""
    first, seeds = methods[0], max(len(method.seeds) for method in methods)
    name = escape_unprintable(first.experiments[0].name)
    evaluated = "" if first.summaries[0].evaluated == "test" else ", mean of clients on their own test data"
    if len(methods) == 1 and seeds == 1:
        return f"{name}: {first.name}, {metric}{evaluated}, seed {first.seeds[0]}"
    return f"{name}: {metric}{evaluated}{',' if evaluated else ''} over {format_count(seeds, 'seed')}"


def _read_method_runs(name: str, runs: list[Run], style: MethodStyle, shown: list[int]) -> MethodRuns:
    """Read the runs of one method, with the lanes of the shown clients."""
    experiments, summaries = [run.experiment() for run in runs], [run.summary() for run in runs]
    curves, staleness, accepted = [], Counter[int](), []
    for run in runs:
        with open_trace(run.trace_file) as db:
            curves.append(read_run_curves(db))
            staleness.update(staleness_values(db))
            accepted.append(accepted_updates(db))
    with open_trace(runs[0].trace_file) as db:
        clients = [0] if is_pooled(experiments[0].strategy) else shown
        lanes = timelines.read_lanes(db, clients, summaries[0].seconds)
    seeds, counts = [experiment.seed for experiment in experiments], dict(sorted(staleness.items()))
    return MethodRuns(name, style, runs, seeds, experiments, summaries, curves, counts, accepted, lanes)


def _clients_by_speed(runs: Sequence[Run]) -> list[int]:
    """Return all clients of these runs, fastest first."""
    step_seconds, clients = [], set[int]()
    for run in runs:
        experiment = run.experiment()
        if is_pooled(experiment.strategy) and len(runs) > 1:
            continue
        with open_trace(run.trace_file) as db:
            step_seconds.append(timelines.step_seconds(db))
            clients.update(client for (client,) in db.execute("SELECT DISTINCT client FROM trace WHERE client >= 0"))
            served = db.execute("SELECT 1 FROM facts WHERE key = ?", (SERVED,)).fetchone()
        if experiment.population <= MAX_COUNTED_CLIENTS and not served:  # a live run has the sites that joined
            clients.update(range(experiment.population))
    return timelines.sort_by_speed(clients, step_seconds)


def read_run_curves(db: sqlite3.Connection) -> RunCurves:
    """Read metrics and notes, updates and bytes at each point of the evaluation grid."""
    points: dict[int, tuple[float, int]] = {}
    values: dict[str, dict[int, float]] = {}
    for seq, now, updates, key, value in db.execute("SELECT seq, now, updates, key, value FROM metrics ORDER BY seq"):
        if "/" not in key:
            points[seq] = now, updates
            values.setdefault(key, {})[seq] = nan if value is None else value
    for seq, notes in zip(points, notes_on_grid(db, list(points)), strict=True):
        for key, value in notes.items():
            values.setdefault(key, {})[seq] = value
    transfers = db.execute("SELECT seq, bytes FROM trace WHERE bytes IS NOT NULL ORDER BY seq").fetchall()
    sums = np.concatenate([[0.0], np.cumsum([size for _, size in transfers], dtype=np.float64)])
    before = np.searchsorted([seq for seq, _ in transfers], list(points))
    return RunCurves(
        np.array([now for now, _ in points.values()], dtype=np.float64),
        np.array([updates for _, updates in points.values()], dtype=np.float64),
        sums[before] if points else np.zeros(0),
        {key: np.array([by_seq.get(seq, nan) for seq in points]) for key, by_seq in values.items()},
    )


def accepted_updates(db: sqlite3.Connection) -> dict[int, int]:
    """Return the number of accepted updates of each client."""
    accepted = "kind = 'arrive' AND ticket NOT IN (SELECT ticket FROM trace WHERE kind = 'reject')"
    return dict(db.execute(f"SELECT client, COUNT(*) FROM trace WHERE {accepted} GROUP BY client"))


def metric_axis_limits(series: FigureSeries, metric: str | None = None) -> tuple[float, float] | None:
    """Return axis limits that make differences between methods visible, or None if there are no values.

    The axis covers the values after the first quarter of the run, from the worst mean of any method to the best value
    of any seed, and the target. Worse values from the beginning are cut off. Both sides have a margin of 5 %.
    """
    metric = metric or series.metric
    higher = series.methods[0].summaries[0].higher(metric)
    values: list[float] = []
    for method in series.methods:
        band = method.band(metric)
        late = band.seconds >= EARLY_SHARE * max(band.seconds, default=0.0)
        values += [*band.mean[late], *(band.high if higher else band.low)[late]]
    if series.target is not None and series.target.metric == metric:
        values.append(series.target.value)
    finite = [value for value in values if np.isfinite(value)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    margin = (high - low) / 20 or abs(high) / 20 or 0.05
    return low - margin, high + margin
