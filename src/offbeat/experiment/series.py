"""What figures and pages draw of a comparison: curves with bands, timelines, staleness."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offbeat.experiment import metrics
from offbeat.experiment.comparison import Comparison
from offbeat.experiment.config import is_pooled
from offbeat.experiment.curves import Curve
from offbeat.experiment.metrics import Span

Floats = NDArray[np.float64]
COLOURS = ("#4C72B0", "#DD8452", "#55A868", "#C44E52", "#8172B3", "#937860", "#DA8BC3", "#8C8C8C", "#CCB974", "#64B5CD")


@dataclass(frozen=True)
class Method:
    name: str
    colour: str
    seconds: Floats  # the evaluation grid
    mean: Floats  # of the metric over the seeds
    low: Floats
    high: Floats
    spans: list[Span]  # who trained when, in the first seed's run
    clients: int
    end: float
    staleness: dict[int, float]  # staleness -> share of all updates
    names: dict[int, str]  # of clients that are called something


def collect(comparison: Comparison, metric: str) -> list[Method]:
    return [_method(comparison, name, metric, i) for i, name in enumerate(comparison.strategies())]


def _method(comparison: Comparison, name: str, metric: str, index: int) -> Method:
    curves, ages = [], Counter[int]()
    runs = comparison.runs(name)
    spans: list[Span] = []
    end = 0.0
    for number, run in enumerate(runs):
        with metrics.open_trace(run.trace_file) as db:
            curves.append(metrics.curve(db, metric))
            ages.update(metrics.staleness(db))
            if number == 0:
                end = curves[0].seconds[-1] if curves[0].seconds else 0.0
                spans = metrics.spans(db, end)
    grid, values = _on_one_grid(curves)
    low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    total = sum(ages.values()) or 1
    shares = {u: count / total for u, count in sorted(ages.items())}
    colour, experiment = COLOURS[index % len(COLOURS)], runs[0].experiment()
    names = {} if is_pooled(experiment.strategy) else runs[0].names()
    mean = np.nanmean(values, axis=0)
    return Method(name, colour, grid, mean, low, high, spans, experiment.population, end, shares, names)


def _on_one_grid(curves: list[Curve]) -> tuple[Floats, Floats]:
    """All seeds share one grid, but for a run that ended early: its last value stands."""
    grid = np.unique(np.concatenate([c.seconds for c in curves]))
    return grid, np.stack([np.interp(grid, c.seconds, c.values) for c in curves])
