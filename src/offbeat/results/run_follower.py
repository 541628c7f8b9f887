"""How a run goes that another process computes, read off its folder.

Only looks: the trace is opened for reading, for a moment (SQLite's log lets the run write meanwhile), and of the lock
it is asked whether somebody holds it.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any, Literal

from offbeat.core.errors import ConfigError, RunError
from offbeat.engine.trace_file import read_only
from offbeat.experiment.comparison import MANIFEST, Comparison
from offbeat.experiment.run import run_lock
from offbeat.experiment.run.execution import Run
from offbeat.metrics.trace_summary import without_nan

RECENT = 100  # updates whose staleness is told

State = Literal["not begun", "going on", "stopped", "ended"]


@dataclass(frozen=True)
class Look:
    """How a run is doing. Stopped: nobody computes it, and it is not at its end."""

    state: State
    now: float = 0.0
    share: float = 0.0
    updates: int = 0
    versions: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    staleness: float | None = None  # of the newest updates, on average
    refused: int = 0  # by the gate
    rejected: int = 0  # by the strategy
    lost: int = 0
    reason: str | None = None  # why it ended

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        made: dict[str, Any] = without_nan(self.__dict__)
        return made


class Follower:
    """Looks at one run again and again; of its trace only at what is new."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.until = run.experiment().until
        self._forget()

    def _forget(self) -> None:
        self._seq, self._now, self._kinds = -1, 0.0, Counter[str]()

    def look(self) -> Look:
        complete, held = self.run.complete, run_lock.held(self.run.folder)  # before the trace: that then has all of it
        state: State = "ended" if complete else "going on" if held else "stopped"
        try:
            with closing(read_only(self.run.trace_file)) as db:
                return self._read(db, state)
        except sqlite3.Error as error:
            if not complete and (not self.run.trace_file.is_file() or "no such table" in str(error)):
                return Look("going on" if held else "not begun")
            raise RunError(f"{self.run.trace_file} is not a readable trace: {error}") from None

    def _read(self, db: sqlite3.Connection, state: State) -> Look:
        db.execute("BEGIN")  # all of it of one moment
        last = db.execute("SELECT MAX(seq) FROM trace").fetchone()[0]
        if last is None or last < self._seq:  # resumed from a checkpoint: cut back, to do it again
            self._forget()
        new = "SELECT kind, COUNT(*), MAX(seq), MAX(now) FROM trace WHERE seq > ? GROUP BY kind"
        for kind, count, seq, now in db.execute(new, (self._seq,)).fetchall():
            self._kinds[kind] += count
            self._seq, self._now = max(self._seq, seq), max(self._now, now)
        metrics, measured = _newest(db)
        ages = db.execute(
            "SELECT version - base_version FROM trace WHERE kind = 'arrive' ORDER BY seq DESC LIMIT ?", (RECENT,)
        ).fetchall()
        stop = db.execute("SELECT detail FROM trace WHERE kind = 'stop' AND seq = ?", (self._seq,)).fetchone()
        kinds, now = self._kinds, max(self._now, measured)
        updates = kinds["arrive"] - kinds["reject"]
        return Look(
            state,
            now,
            1.0 if state == "ended" else self.until.share(now, updates),
            updates,
            db.execute("SELECT COUNT(*) FROM commits").fetchone()[0],
            metrics,
            sum(age for (age,) in ages) / len(ages) if ages else None,
            kinds["refuse"],
            kinds["reject"],
            kinds["lost"],
            stop[0] if stop else None,
        )


def _newest(db: sqlite3.Connection) -> tuple[dict[str, float], float]:
    """What was last measured of the model, and when."""
    last = "SELECT seq FROM metrics WHERE key NOT LIKE '%/%' ORDER BY seq DESC LIMIT 1"
    rows = db.execute(f"SELECT key, value, now FROM metrics WHERE seq = ({last}) ORDER BY rowid").fetchall()
    return {key: nan if value is None else value for key, value, _ in rows}, rows[0][2] if rows else 0.0


def runs_of(folder: Path) -> dict[str, Run]:
    """A run by itself, or those of a comparison by their folders' names."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    if (folder / MANIFEST).is_file():
        return {entry["folder"]: run for entry, run in Comparison(folder).entries()}
    return {folder.name: Run(folder)}
