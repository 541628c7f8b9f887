"""What a run's trace has to tell a tracker: on each point of the evaluation grid its metrics, how stale the updates
since the point before were, how many had been refused by then, and what the strategy noted.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from offbeat.metrics import strategy_notes


@dataclass(frozen=True)
class Point:
    seq: int  # the row of the trace that it ends with
    now: float  # virtual seconds
    updates: int  # accepted by then
    values: Mapping[str, float]


def since(db: sqlite3.Connection, after: int) -> list[Point]:
    """Those behind this row, in order."""
    found: dict[int, tuple[float, int, dict[str, float]]] = {}
    query = "SELECT seq, now, updates, key, value FROM metrics WHERE seq > ? ORDER BY seq, rowid"
    for seq, now, updates, key, value in db.execute(query, (after,)):
        found.setdefault(seq, (now, updates, {}))[2][key] = value
    grid = list(found)
    if not grid:
        return []
    before = db.execute("SELECT MAX(seq) FROM metrics WHERE seq <= ?", (after,)).fetchone()[0]
    before = -1 if before is None else before
    noted, ages = strategy_notes.on_grid(db, grid, before), _ages(db, grid, before)
    refused = "SELECT COUNT(*) FROM trace WHERE kind = 'refuse' AND seq <= ?"
    made = []
    for i, (seq, (now, updates, values)) in enumerate(found.items()):
        more = {} if ages[i] is None else {"staleness": ages[i], "refused": db.execute(refused, (seq,)).fetchone()[0]}
        told = {key: value for key, value in {**values, **more, **noted[i]}.items() if value is not None}
        made.append(Point(seq, now, updates, {key: float(value) for key, value in told.items() if isfinite(value)}))
    return made


def _ages(db: sqlite3.Connection, grid: list[int], after: int) -> list[float | None]:
    """The mean staleness of the updates up to each point."""
    each: list[list[int]] = [[] for _ in grid]
    query = "SELECT seq, version - base_version FROM trace WHERE kind = 'arrive' AND seq > ? AND seq <= ?"
    for seq, age in db.execute(query, (after, grid[-1])):
        each[bisect_left(grid, seq)].append(age)
    return [sum(ages) / len(ages) if ages else None for ages in each]


def flat(settings: Mapping[str, Any], head: str = "") -> dict[str, bool | int | float | str]:
    """Nested settings as trackers want hyper-parameters: `training.lr`, and what is no plain value in words."""
    made: dict[str, bool | int | float | str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            made.update(flat(value, f"{head}{key}."))
        elif value is not None:
            made[f"{head}{key}"] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return made
