"""Who worked when, over a whole run: a lane a client, fastest first, cut into so many bins that any run fits.

Of each bin: for which share of it the client was at work and was away, how many of its updates arrived, and how many of
its jobs came to nothing (lost, refused by the gate, or rejected by the strategy).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

import numpy as np
from numpy.typing import NDArray

from offbeat.core.computed_rows import evenly

BINS = 200
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Lanes:
    clients: list[int]  # whose they are, fastest first
    end: float  # the last bin ends here
    work: Floats  # clients × bins: share of the bin
    away: Floats
    arrived: Floats  # how many
    in_vain: Floats


def paces(db: sqlite3.Connection) -> dict[int, float]:
    """Seconds a step of each client whose updates arrived, the median of its jobs: methods give jobs of other sizes."""
    found: dict[int, list[float]] = {}
    started: dict[int, float] = {}
    query = "SELECT kind, client, ticket, now, steps FROM trace WHERE kind IN ('dispatch', 'arrive') ORDER BY seq"
    for kind, client, ticket, now, steps in db.execute(query):
        if kind == "dispatch":
            started[ticket] = now
        elif ticket in started:
            found.setdefault(client, []).append((now - started.pop(ticket)) / max(1, steps or 1))
    return {client: median(each) for client, each in found.items()}


def by_speed(clients: Iterable[int], found: Sequence[Mapping[int, float]]) -> list[int]:
    """Fastest first, by what was found in several runs; last, by number, whoever was never heard."""

    def pace(client: int) -> float:
        return median([of[client] for of in found if client in of] or [inf])

    return sorted(clients, key=lambda client: (pace(client), client))


def some(order: Sequence[int], at_most: int) -> list[int]:
    """Of very many some, from the fastest to the slowest."""
    chosen = [order[i] for i in evenly(len(order), at_most)] if order else []
    return [*chosen[:-1], order[-1]] if chosen else []  # the slowest is the one to look at


def read(db: sqlite3.Connection, clients: Sequence[int], end: float) -> Lanes:
    rows = {client: row for row, client in enumerate(clients)}
    made = Lanes(list(clients), end, *(np.zeros((len(rows), BINS)) for _ in range(4)))
    width = end / BINS if end > 0 else 1.0
    busy: dict[int, tuple[int, float]] = {}  # ticket -> its client's row and when it was sent
    last: dict[int, float] = {}  # when a client was last heard of
    gone: dict[int, float] = {}  # since when a client is away
    query = "SELECT kind, client, ticket, now FROM trace WHERE client IS NOT NULL ORDER BY seq"
    for kind, client, ticket, now in db.execute(query):
        row = rows.get(client)
        if row is None:
            continue
        if kind == "dispatch":
            busy[ticket] = row, now
        elif kind in ("arrive", "lost", "refuse") and ticket in busy:
            _cover(made.work[row], busy.pop(ticket)[1], now, width)
            (made.arrived if kind == "arrive" else made.in_vain)[row, _bin(now, width)] += 1
        elif kind == "reject":  # it follows its arrival
            made.arrived[row, _bin(now, width)] -= 1
            made.in_vain[row, _bin(now, width)] += 1
        elif kind == "left":
            gone[row] = now
        elif kind == "back":  # since it left, was lost or, if nothing was heard of it, since the beginning
            _cover(made.away[row], gone.pop(row, last.get(row, 0.0)), now, width)
        last[row] = now
    for row, started in busy.values():  # the run ended first
        _cover(made.work[row], started, end, width)
    for row, since in gone.items():
        _cover(made.away[row], since, end, width)
    np.clip(made.arrived, 0, None, out=made.arrived)
    for shares in (made.work, made.away):
        np.clip(shares, 0, 1, out=shares)  # rounding
    return made


def _bin(now: float, width: float) -> int:
    return min(int(now / width), BINS - 1)


def _cover(row: Floats, start: float, stop: float, width: float) -> None:
    """Add to each bin the share of it that lies between the two."""
    first, last = _bin(start, width), _bin(stop, width)
    if first == last:
        row[first] += (stop - start) / width
        return
    row[first] += first + 1 - start / width
    row[first + 1 : last] += 1
    row[last] += min(1.0, stop / width - last)
