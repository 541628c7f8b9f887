"""Send the progress of runs to experiment trackers (`--track tensorboard|mlflow|wandb[:WHERE]`).

A thread polls the traces and sends new points. The run folder stores the last row that each tracker has (tracked.json),
so a resumed run sends nothing twice unless the process was killed between sending and storing. A tracker that fails
causes one warning, and the run continues.
"""

from __future__ import annotations

import importlib
import json
import logging
import sqlite3
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from math import isfinite
from statistics import fmean

from offbeat.core.errors import ConfigError, escape_unprintable, unknown_name
from offbeat.engine import open_read_only, write_atomically
from offbeat.experiment.run import Run
from offbeat.experiment.spec import to_values
from offbeat.metrics import measure_values, notes_on_grid
from offbeat.results.tracking.trackers import TRACKERS, SettingValue, TrackedPoint, TrackedRunInfo, Tracker

log = logging.getLogger("offbeat")

MARKS_FILE = "tracked.json"
POLL_SECONDS = 5.0
CLOSE_SECONDS = 60.0  # time limit for the trackers at the end


@dataclass(frozen=True)
class TrackerChoice:
    """A tracker and its target, as given on the command line."""

    name: str
    where: str | None = None

    def __str__(self) -> str:
        """Return the text that the command line accepts."""
        return self.name if self.where is None else f"{self.name}:{self.where}"


@dataclass(frozen=True)
class TrackingMark:
    """The part of a run that a tracker has received."""

    seq: int = -1  # the last row of the trace
    name: str | None = None  # the tracker's name of the run
    closed: bool = False  # the tracker has the end of the run


def parse_trackers(texts: Sequence[str]) -> list[TrackerChoice]:
    """Parse choices, and reject those that are unknown or not installed."""
    choices = []
    for text in dict.fromkeys(texts):
        name, _, where = text.partition(":")
        if name not in TRACKERS:
            raise unknown_name("tracker", name, TRACKERS)
        package = TRACKERS[name].package
        try:
            importlib.import_module(package)
        except ImportError as error:
            why = "" if isinstance(error, ModuleNotFoundError) and error.name == package else f" ({error})"
            raise ConfigError(f"--track {name} needs the package {package}{why}: pip install offbeat[track]") from None
        choices.append(TrackerChoice(name, where or None))
    return choices


class TrackedRun:
    """A run that sends its progress to one tracker."""

    def __init__(self, run: Run, name: str, group: str | None, choice: TrackerChoice) -> None:
        self.run, self.name, self.group, self.choice = run, name, group, choice
        self.tracker: Tracker | None = None
        self.mark = _read_marks(run).get(str(choice), TrackingMark())

    def send_new_points(self) -> None:
        """Send all new points, and the summary of a finished run."""
        if self.mark.closed or not self.run.trace_file.is_file():
            return
        complete = self.run.complete  # before the trace is read, so that the trace is complete too
        with closing(open_read_only(self.run.trace_file)) as db:
            try:
                points = points_since(db, self.mark.seq)
            except sqlite3.OperationalError:  # the trace has no tables yet
                return
        if points:
            self._open_tracker().write(points)
            self._save_mark(replace(self.mark, seq=points[-1].seq))
        if complete:
            self._open_tracker().close(_finite_values(measure_values(self.run.summary())))
            self.tracker = None
            self._save_mark(replace(self.mark, closed=True))

    def close(self) -> None:
        """Close the tracker of an unfinished run, which may be resumed later."""
        tracker, self.tracker = self.tracker, None
        if tracker is not None:
            tracker.close(None)

    def _open_tracker(self) -> Tracker:
        """Return the tracker; open it at the first call."""
        if self.tracker is None:
            settings = flatten_settings(to_values(self.run.experiment()))
            info = TrackedRunInfo(self.name, self.group, self.run.folder, settings)
            self.tracker = TRACKERS[self.choice.name](self.choice.where, info, self.mark.name)
            self._save_mark(replace(self.mark, name=self.tracker.name))
        return self.tracker

    def _save_mark(self, mark: TrackingMark) -> None:
        """Store the mark in the run folder."""
        self.mark = mark
        marks = {**_read_marks(self.run), str(self.choice): mark}
        stored = {choice: asdict(mark) for choice, mark in marks.items()}
        write_atomically(self.run.folder / MARKS_FILE, json.dumps(stored, indent=2).encode())


def _read_marks(run: Run) -> dict[str, TrackingMark]:
    """Return the mark of each tracker; empty if the file is unreadable, so everything is sent again."""
    try:
        stored = json.loads((run.folder / MARKS_FILE).read_text(encoding="utf-8"))
        return {str(key): TrackingMark(int(m["seq"]), m["name"], bool(m["closed"])) for key, m in stored.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


@contextmanager
def track_runs(runs: Mapping[str, Run], group: str | None, texts: Sequence[str]) -> Iterator[None]:
    """Send the progress of these runs to the chosen trackers while the context is active."""
    tracked_runs = [
        TrackedRun(run, name if group is None else f"{group}/{name}", group, choice)
        for choice in parse_trackers(texts)
        for name, run in runs.items()
    ]
    if not tracked_runs:
        yield
        return
    stopping, failed = threading.Event(), set[TrackerChoice]()

    def send(last: bool = False) -> None:
        """Send the new points of all runs; exclude a tracker that fails."""
        for tracked in tracked_runs:
            if tracked.choice in failed:
                continue
            try:
                tracked.send_new_points()
                if last:
                    tracked.close()
            except Exception as error:  # a tracker's failure must not stop a run
                failed.add(tracked.choice)
                why = escape_unprintable(" ".join(f"{type(error).__name__}: {error}".split()))[:300]
                log.warning("warning: %s failed and is no longer updated, the run continues: %s", tracked.choice, why)

    def poll() -> None:
        """Send at intervals until the context ends."""
        while not stopping.wait(POLL_SECONDS):
            send()
        send(last=True)

    thread = threading.Thread(target=poll, name="track", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(CLOSE_SECONDS)
        if thread.is_alive():
            log.warning("warning: a tracker does not respond; it may lack the end of the run")


def points_since(db: sqlite3.Connection, after: int) -> list[TrackedPoint]:
    """Return the grid points after a row of the trace.

    Each has its metrics, the notes and mean staleness since the point before, and the updates refused so far.
    """
    grid: dict[int, tuple[float, int, dict[str, float | None]]] = {}
    query = "SELECT seq, now, updates, key, value FROM metrics WHERE seq > ? ORDER BY seq, rowid"
    for seq, now, updates, key, value in db.execute(query, (after,)):
        grid.setdefault(seq, (now, updates, {}))[2][key] = value
    if not grid:
        return []
    before = db.execute("SELECT MAX(seq) FROM metrics WHERE seq <= ?", (after,)).fetchone()[0]
    before = -1 if before is None else before
    rows, staleness = list(grid), [list[int]() for _ in grid]
    arrivals = "SELECT seq, version - base_version FROM trace WHERE kind = 'arrive' AND seq > ? AND seq <= ?"
    for seq, versions in db.execute(arrivals, (before, rows[-1])):
        staleness[bisect_left(rows, seq)].append(versions)
    points, notes = [], notes_on_grid(db, rows, before)
    refused = "SELECT COUNT(*) FROM trace WHERE kind = 'refuse' AND seq <= ?"
    for i, (seq, (now, updates, values)) in enumerate(grid.items()):
        if staleness[i]:
            values |= {"staleness": fmean(staleness[i]), "refused": db.execute(refused, (seq,)).fetchone()[0]}
        points.append(TrackedPoint(seq, now, updates, _finite_values({**values, **notes[i]})))
    return points


def _finite_values(values: Mapping[str, object]) -> dict[str, float]:
    """Return the values that are finite numbers."""
    return {key: float(v) for key, v in values.items() if isinstance(v, (int, float)) and isfinite(v)}


def flatten_settings(settings: Mapping[str, object], prefix: str = "") -> dict[str, SettingValue]:
    """Flatten nested settings to `training.lr` with values that trackers accept as hyper-parameters."""
    flat: dict[str, SettingValue] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat.update(flatten_settings(value, f"{prefix}{key}."))
        elif value is not None:
            flat[f"{prefix}{key}"] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return flat
