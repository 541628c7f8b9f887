"""What strategies note (`Note`), as curves: at each point of the evaluation grid the mean of what was noted since the
one before.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Sequence

NOTE = "note/"  # in front of its name, wherever it stands beside metrics


def on_grid(db: sqlite3.Connection, grid: Sequence[int], after: int = -1) -> list[dict[str, float]]:
    """Of each point, a row of the trace, what was noted up to there; `after`: the row of the point before the first."""
    sums: list[dict[str, tuple[float, int]]] = [{} for _ in grid]
    rows = db.execute("SELECT seq, key, value FROM notes WHERE seq > ? AND value NOT NULL ORDER BY rowid", (after,))
    for seq, key, value in rows:
        place = bisect_left(grid, seq)
        if place < len(grid):
            total, count = sums[place].get(key, (0.0, 0))
            sums[place][key] = total + value, count + 1
    return [{NOTE + key: total / count for key, (total, count) in point.items()} for point in sums]


def means(db: sqlite3.Connection) -> dict[str, float]:
    """Of each over the whole run."""
    return dict(db.execute("SELECT key, AVG(value) FROM notes WHERE value NOT NULL GROUP BY key ORDER BY MIN(rowid)"))
