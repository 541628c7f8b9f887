"""Progress of a run that another process computes, read from its folder without changing it.

SQLite's write-ahead log lets the run continue to write. The lock is only tested.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Literal

from offbeat.core.errors import ConfigError, RunError
from offbeat.engine import open_read_only
from offbeat.experiment import MANIFEST, Comparison
from offbeat.experiment.run import Run, is_locked

RECENT_UPDATES = 100  # updates over which the staleness is averaged

RunState = Literal["not begun", "going on", "stopped", "ended"]


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run; "stopped" means that it is unfinished and no process computes it."""

    state: RunState
    now: float = 0.0
    share: float = 0.0
    updates: int = 0
    versions: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    staleness: float | None = None  # mean of the newest updates
    refused: int = 0  # by the gate
    rejected: int = 0  # by the strategy
    lost: int = 0
    reason: str | None = None  # why the run ended


class RunFollower:
    """Read the progress of one run repeatedly, each time only the new rows of its trace.

    `_seq` and `_now` are the last row and its time, `_kinds` counts the rows of each kind.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.until = run.experiment().until
        self._seq, self._now, self._kinds = -1, 0.0, Counter[str]()

    def read_progress(self) -> RunProgress:
        """Return the state of the run and what its trace contains so far."""
        complete = self.run.complete  # before the trace is read, so that the trace is complete too
        locked = is_locked(self.run.folder)
        state: RunState = "ended" if complete else "going on" if locked else "stopped"
        try:
            with closing(open_read_only(self.run.trace_file)) as db:
                return self._read_trace(db, state)
        except sqlite3.Error as error:
            if not complete and (not self.run.trace_file.is_file() or "no such table" in str(error)):
                return RunProgress("going on" if locked else "not begun")
            raise RunError(f"{self.run.trace_file} is not a readable trace: {error}") from None

    def _read_trace(self, db: sqlite3.Connection, state: RunState) -> RunProgress:
        """Count the new rows, and return the progress."""
        db.execute("BEGIN")  # one consistent state
        last = db.execute("SELECT MAX(seq) FROM trace").fetchone()[0]
        if last is None or last < self._seq:  # resumed from a checkpoint, which truncates the trace
            self._seq, self._now, self._kinds = -1, 0.0, Counter[str]()
        new = "SELECT kind, COUNT(*), MAX(seq), MAX(now) FROM trace WHERE seq > ? GROUP BY kind"
        for kind, count, seq, now in db.execute(new, (self._seq,)).fetchall():
            self._kinds[kind] += count
            self._seq, self._now = max(self._seq, seq), max(self._now, now)
        last_evaluation = "SELECT seq FROM metrics WHERE key NOT LIKE '%/%' ORDER BY seq DESC LIMIT 1"
        query = f"SELECT key, value, now FROM metrics WHERE seq = ({last_evaluation}) ORDER BY rowid"
        metrics = db.execute(query).fetchall()
        recent = "SELECT version - base_version FROM trace WHERE kind = 'arrive' ORDER BY seq DESC LIMIT ?"
        staleness = db.execute(recent, (RECENT_UPDATES,)).fetchall()
        stop = db.execute("SELECT detail FROM trace WHERE kind = 'stop' AND seq = ?", (self._seq,)).fetchone()
        kinds, now = self._kinds, max([self._now, *(at for _, _, at in metrics)])
        updates = kinds["arrive"] - kinds["reject"]
        return RunProgress(
            state,
            now,
            1.0 if state == "ended" else self.until.fraction_done(now, updates),
            updates,
            db.execute("SELECT COUNT(*) FROM commits").fetchone()[0],
            {key: nan if value is None else value for key, value, _ in metrics},
            sum(value for (value,) in staleness) / len(staleness) if staleness else None,
            kinds["refuse"],
            kinds["reject"],
            kinds["lost"],
            stop[0] if stop else None,
        )


def open_runs(folder: Path) -> dict[str, Run]:
    """Return the run, or all runs of the comparison, in a folder, by folder name."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    if (folder / MANIFEST).is_file():
        return {entry["folder"]: run for entry, run in Comparison(folder).entries()}
    return {folder.name: Run(folder)}
