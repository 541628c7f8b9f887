"""The numbers that the scripts of a page draw, in a compact form: activity levels are single digits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import isfinite

import numpy as np

from offbeat.experiment import ClassCounts
from offbeat.metrics import quantiles_of_counts
from offbeat.results.series import MAX_SHOWN_CLIENTS, FigureSeries, MethodRuns, metric_axis_limits
from offbeat.results.timelines import Floats, sample_clients

Grid = list[list[float | None]]


def page_numbers(series: FigureSeries, class_counts: ClassCounts | None) -> dict[str, object]:
    """Return everything that the scripts of the page read, as a JSON object."""
    metrics = list(dict.fromkeys(name for m in series.methods for c in m.curves for name in c.values))
    metrics.sort(key=lambda name: name != series.metric)
    target = series.target
    return {
        "metric": series.metric,
        "clock": series.clock,
        "metrics": [{"name": name, "axis": metric_axis_limits(series, name)} for name in metrics],
        "target": None if target is None else {"metric": target.metric, "value": target.value, "text": str(target)},
        "methods": [_method_numbers(series, method, metrics) for method in series.methods],
        "clients": len(series.clients),
        "heard": _updates_by_client(series),
        "own": _metric_by_client(series),
        "classes": None if class_counts is None else _updates_by_class(series, class_counts),
        "held": None if class_counts is None else _examples_by_class(series, class_counts),
    }


def _method_numbers(series: FigureSeries, method: MethodRuns, metrics: Iterable[str]) -> dict[str, object]:
    """Return the curves, the staleness and the lanes of one method."""
    quantiles, lanes = quantiles_of_counts(method.staleness), method.lanes
    layers = {
        "work": _digits(lanes.work * 9),
        "arrived": _digits(lanes.arrived),
        "away": _digits(lanes.away * 9),
        "failed": _digits(lanes.failed),
    }
    nonempty = {name: rows for name, rows in layers.items() if any(row.strip("0") for row in rows)}
    names = [series.client_name(client) for client in lanes.clients]
    return {
        "name": method.name,
        "dash": method.style.dash,
        "seeds": method.seeds,
        "against": {axis: _rounded_rows(method.stacked(axis)) for axis in ("seconds", "updates", "moved")},
        "values": {name: _rounded_rows(method.stacked(name)) for name in metrics},
        "staleness": None if quantiles is None else asdict(quantiles),
        "lanes": {"clients": names, "end": lanes.end, **nonempty},
    }


def _digits(values: Floats) -> list[str]:
    """Round to one digit per bin, at most 9, and at least 1 for values above zero."""
    rounded = np.clip(np.round(values), (values > 1e-6).astype(float), 9).astype(int)
    return ["".join(map(str, row)) for row in rounded.tolist()]


def _client_grid(series: FigureSeries, clients: Sequence[int], columns: list[str], values: Grid) -> dict[str, object]:
    """Return a heat map with one row per client."""
    return {"rows": [series.client_name(client) for client in clients], "columns": columns, "values": values}


def _updates_by_client(series: FigureSeries) -> dict[str, object] | None:
    """Return each client's accepted updates relative to equal numbers for all clients."""
    methods = [m for m in series.methods if not m.pooled and m.accepted[0]]
    clients = sample_clients(series.clients, MAX_SHOWN_CLIENTS)
    if not methods or len(series.clients) < 2:
        return None
    count = len(series.clients)
    values = [[_ratio(m.accepted[0].get(c, 0) * count, sum(m.accepted[0].values())) for m in methods] for c in clients]
    return _client_grid(series, clients, [m.name for m in methods], values)


def _metric_by_client(series: FigureSeries) -> dict[str, object] | None:
    """Return the final metric of each client on its own examples, for the first seed: each seed has its own world."""
    methods = [m for m in series.methods if not m.pooled and m.summaries[0].by_client]
    evaluated = {client for m in methods for client in m.summaries[0].by_client}
    clients = sample_clients([client for client in series.clients if client in evaluated], MAX_SHOWN_CLIENTS)
    values = [[_rounded(m.summaries[0].by_client.get(c)) for m in methods] for c in clients]
    return _client_grid(series, clients, [m.name for m in methods], values) if clients else None


def _updates_by_class(series: FigureSeries, class_counts: ClassCounts) -> dict[str, object] | None:
    """Return how often each class contributed relative to equal numbers of updates for all clients."""
    counts, clients = class_counts.counts.double().numpy(), class_counts.clients
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)  # clients × classes
    equal_shares = shares.sum(0) / len(shares)
    methods = [m for m in series.methods if not m.pooled and any(m.accepted[0].get(c) for c in clients)]
    if not methods or counts.shape[1] < 2:
        return None
    columns = []
    for method in methods:
        weights = np.array([method.accepted[0].get(client, 0) for client in clients], dtype=float)
        method_shares = weights @ shares / weights.sum()
        columns.append([_ratio(a, b) for a, b in zip(method_shares, equal_shares, strict=True)])
    values = [list(row) for row in zip(*columns, strict=True)]
    return {"rows": class_counts.class_labels(), "columns": [m.name for m in methods], "values": values}


def _examples_by_class(series: FigureSeries, class_counts: ClassCounts) -> dict[str, object]:
    """Return the number of training examples of each client and class."""
    row_of = {client: row for row, client in enumerate(class_counts.clients)}
    known = [client for client in series.clients if client in row_of] or list(class_counts.clients)
    clients = sample_clients(known, MAX_SHOWN_CLIENTS)
    values = [class_counts.counts[row_of[client]].tolist() for client in clients]
    return _client_grid(series, clients, class_counts.class_labels(), values)


def _ratio(part: float, total: float) -> float | None:
    """Return a rounded ratio, or None if the total is zero."""
    return _rounded(part / total) if total else None


def _rounded_rows(values: Floats) -> Grid:
    """Return the rows of a matrix with rounded numbers."""
    return [[_rounded(value) for value in row] for row in values.tolist()]


def _rounded(value: float | None) -> float | None:
    """Round to five digits, because pages should be small."""
    if value is None or not isfinite(value):
        return None
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
