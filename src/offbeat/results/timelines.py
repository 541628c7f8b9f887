"""Activity of clients over a whole run, as one lane per client with a fixed number of time bins."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

import numpy as np
from numpy.typing import NDArray

from offbeat.core.computed_rows import evenly_spaced
from offbeat.metrics import JOB_ENDS

BINS = 200
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ClientLanes:
    """Clients × bins: shares of each bin spent working and away, and numbers of arrived updates and failed jobs.

    A job fails if it is lost, refused by the gate or rejected by the strategy.
    """

    clients: list[int]  # fastest first
    end: float  # of the last bin
    work: Floats
    away: Floats
    arrived: Floats
    failed: Floats


def step_seconds(db: sqlite3.Connection) -> dict[int, float]:
    """Return the median seconds per step of each client with updates, because methods give jobs of different length."""
    seconds: dict[int, list[float]] = {}
    started: dict[int, float] = {}
    query = "SELECT kind, client, ticket, now, steps FROM trace WHERE kind IN ('dispatch', 'arrive') ORDER BY seq"
    for kind, client, ticket, now, steps in db.execute(query):
        if kind == "dispatch":
            started[ticket] = now
        elif ticket in started:
            seconds.setdefault(client, []).append((now - started.pop(ticket)) / max(1, steps or 1))
    return {client: median(values) for client, values in seconds.items()}


def sort_by_speed(clients: Iterable[int], by_run: Sequence[Mapping[int, float]]) -> list[int]:
    """Sort clients from fastest to slowest over several runs; clients without updates come last, by number."""
    seconds = {client: [run[client] for run in by_run if client in run] or [inf] for client in clients}
    return sorted(seconds, key=lambda client: (median(seconds[client]), client))


def sample_clients(clients: Sequence[int], limit: int) -> list[int]:
    """Return at most `limit` evenly spaced clients, always including the last (the slowest)."""
    sample = [clients[i] for i in evenly_spaced(len(clients), limit)] if clients else []
    return [*sample[:-1], clients[-1]] if sample else []


def read_lanes(db: sqlite3.Connection, clients: Sequence[int], end: float) -> ClientLanes:
    """Read the activity of these clients, with one lane for each in this order."""
    row_of = {client: row for row, client in enumerate(clients)}
    lanes = ClientLanes(list(clients), end, *(np.zeros((len(row_of), BINS)) for _ in range(4)))
    width = end / BINS if end > 0 else 1.0
    open_jobs: dict[int, tuple[int, float]] = {}  # ticket -> row and dispatch time
    last_event: dict[int, float] = {}
    away_since: dict[int, float] = {}
    query = "SELECT kind, client, ticket, now FROM trace WHERE client IS NOT NULL ORDER BY seq"
    for kind, client, ticket, now in db.execute(query):
        row = row_of.get(client)
        if row is None:
            continue
        if kind == "dispatch":
            open_jobs[ticket] = row, now
        elif kind in JOB_ENDS and ticket in open_jobs:
            _cover(lanes.work[row], open_jobs.pop(ticket)[1], now, width)
            (lanes.arrived if kind == "arrive" else lanes.failed)[row, _bin(now, width)] += 1
        elif kind == "reject":  # follows the arrival of the same update
            lanes.arrived[row, _bin(now, width)] -= 1
            lanes.failed[row, _bin(now, width)] += 1
        elif kind == "left":
            away_since[row] = now
        elif kind == "back":  # away since it left, since its last event, or since the start
            _cover(lanes.away[row], away_since.pop(row, last_event.get(row, 0.0)), now, width)
        last_event[row] = now
    for row, started in open_jobs.values():  # the run ended first
        _cover(lanes.work[row], started, end, width)
    for row, since in away_since.items():
        _cover(lanes.away[row], since, end, width)
    np.clip(lanes.arrived, 0, None, out=lanes.arrived)
    for shares in (lanes.work, lanes.away):
        np.clip(shares, 0, 1, out=shares)  # corrects rounding errors
    return lanes


def _bin(now: float, width: float) -> int:
    """Return the number of the bin that contains a time."""
    return min(int(now / width), BINS - 1)


def _cover(row: Floats, start: float, stop: float, width: float) -> None:
    """Add to each bin its share of the time between start and stop."""
    first, last = _bin(start, width), _bin(stop, width)
    if first == last:
        row[first] += (stop - start) / width
        return
    row[first] += first + 1 - start / width
    row[first + 1 : last] += 1
    row[last] += min(1.0, stop / width - last)
