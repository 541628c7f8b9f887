"""The numbers that a page draws, small enough for a page: what can be told by a digit is a digit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from math import isfinite
from typing import Any

import numpy as np

from offbeat.experiment.partition_heatmap import Held, columns
from offbeat.metrics.quantiles import spread
from offbeat.results.series import SHOWN, Method, Series, axis
from offbeat.results.timelines import Floats, Lanes, some


def of(series: Series, held: Held | None) -> dict[str, Any]:
    metrics = list(dict.fromkeys(name for m in series.methods for c in m.courses for name in c.values))
    metrics.sort(key=lambda name: name != series.metric)
    target = series.target
    return {
        "metric": series.metric,
        "clock": series.clock,
        "metrics": [{"name": name, "axis": axis(series, name)} for name in metrics],
        "target": None if target is None else {"metric": target.metric, "value": target.value, "text": str(target)},
        "methods": [_method(series, method, metrics) for method in series.methods],
        "clients": len(series.clients),
        "heard": _heard(series),
        "own": _own(series),
        "classes": None if held is None else _classes(series, held),
        "held": None if held is None else _held(series, held),
    }


def _method(series: Series, method: Method, metrics: Iterable[str]) -> dict[str, Any]:
    return {
        "name": method.name,
        "dash": method.style.dash,
        "seeds": method.seeds,
        "against": {what: _each(method.stacked(what)) for what in ("seconds", "updates", "moved")},
        "values": {name: _each(method.stacked(name)) for name in metrics},
        "staleness": None if (found := spread(method.staleness)) is None else asdict(found),
        "lanes": _lanes(series, method.lanes),
    }


def _lanes(series: Series, lanes: Lanes) -> dict[str, Any]:
    layers = {
        "work": _digits(lanes.work * 9),
        "arrived": _digits(lanes.arrived),
        "away": _digits(lanes.away * 9),
        "in_vain": _digits(lanes.in_vain),
    }
    drawn = {name: rows for name, rows in layers.items() if any(row.strip("0") for row in rows)}
    return {"clients": [series.name(client) for client in lanes.clients], "end": lanes.end, **drawn}


def _digits(values: Floats) -> list[str]:
    """A digit a bin, 9 for more; what is there at all is at least 1."""
    rounded = np.clip(np.round(values), (values > 1e-6).astype(float), 9).astype(int)
    return ["".join(map(str, row)) for row in rounded.tolist()]


def _heard(series: Series) -> dict[str, Any] | None:
    """How often each client's updates counted, against all being heard equally often."""
    methods = [m for m in series.methods if not m.pooled and m.heard[0]]
    clients = some(series.clients, SHOWN)
    if not methods or len(series.clients) < 2:
        return None
    rows = [
        [_ratio(m.heard[0].get(c, 0) * len(series.clients), sum(m.heard[0].values())) for m in methods] for c in clients
    ]
    return {"rows": [series.name(c) for c in clients], "columns": [m.name for m in methods], "values": rows}


def _own(series: Series) -> dict[str, Any] | None:
    """The metric of each client on its own examples, at the end: of the first seed, for each has a world of its own."""
    methods = [m for m in series.methods if not m.pooled and m.summaries[0].by_client]
    known = {client for m in methods for client in m.summaries[0].by_client}
    clients = some([client for client in series.clients if client in known], SHOWN)
    if not clients:
        return None
    rows = [[_finite(m.summaries[0].by_client.get(c)) for m in methods] for c in clients]
    return {"rows": [series.name(c) for c in clients], "columns": [m.name for m in methods], "values": rows}


def _classes(series: Series, held: Held) -> dict[str, Any] | None:
    """How often each class was learned from, against all clients being heard equally often."""
    if held.counts.shape[1] < 2:
        return None
    counts = held.counts.double().numpy()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)  # clients × classes
    equally = shares.sum(0) / len(shares)
    methods = [m for m in series.methods if not m.pooled and any(m.heard[0].get(c) for c in held.clients)]
    rows = []
    for method in methods:
        weights = np.array([method.heard[0].get(client, 0) for client in held.clients], dtype=float)
        found = weights @ shares / weights.sum()
        rows.append([_ratio(a, b) for a, b in zip(found, equally, strict=True)])
    if not rows:
        return None
    turned = [list(column) for column in zip(*rows, strict=True)]
    return {"rows": columns(held.counts), "columns": [m.name for m in methods], "values": turned}


def _held(series: Series, held: Held) -> dict[str, Any]:
    place = {client: row for row, client in enumerate(held.clients)}
    clients = some([client for client in series.clients if client in place] or list(held.clients), SHOWN)
    values = [held.counts[place[client]].tolist() for client in clients]
    return {"rows": [series.name(c) for c in clients], "columns": columns(held.counts), "values": values}


def _ratio(part: float, whole: float) -> float | None:
    return _short(part / whole) if whole else None


def _finite(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else _short(value)


def _each(values: Floats) -> list[list[float | None]]:
    return [[_finite(value) for value in row] for row in values.tolist()]


def _short(value: float) -> float:
    rounded = float(f"{value:.5g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
