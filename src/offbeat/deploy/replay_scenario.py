"""Turn a live run into a simulation whose clients are as slow as its sites."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace

from offbeat.core.errors import ConfigError
from offbeat.experiment.run import Run
from offbeat.experiment.spec import Experiment
from offbeat.metrics import SERVED, open_trace
from offbeat.results import DEPARTURE_REASONS
from offbeat.scenario import Always, Instant
from offbeat.scenario.delays import Replayed

SITE_FILE_MODEL = "live, the model of a site's file"  # the value of the fact SERVED for a model from a site's file
MAX_JOBS_PER_CLIENT = 2000  # recorded times that are used

JOB_TIMES = """
SELECT d.client, a.now - d.now, a.steps FROM trace d JOIN trace a ON a.ticket = d.ticket AND a.kind = 'arrive'
WHERE d.kind = 'dispatch' ORDER BY d.client, d.seq
"""
MIN_ROUND_TRIP = 1e-6  # seconds of a round trip


def simulated_experiment(run: Run, data_named: bool) -> Experiment:
    """Return the run's experiment in virtual time, with a client for each site that answered, as slow as the site.

    `data_named`: the caller names the data to use, which is required if the data is only at the sites.
    """
    experiment = run.runnable_experiment()
    if not run.trace_file.is_file():
        raise ConfigError(f"{run.folder} has not started: there is nothing to replay")
    with open_trace(run.trace_file) as db:
        times = _seconds_per_step(db)
    model = served_model(run)
    if model is None:
        raise ConfigError(f"{run.folder} is a simulation: change it and run it again with 'offbeat run'")
    if model == SITE_FILE_MODEL and not data_named:
        raise ConfigError(f"the data of {run.folder} is at its sites: choose data to use instead with --set data=…")
    if not times:
        raise ConfigError(f"no site of {run.folder} has answered yet: there is nothing to replay")
    return replace(
        experiment,
        clients=len(times),
        delays=Replayed(seconds_per_step=tuple(tuple(jobs[:MAX_JOBS_PER_CLIENT]) for jobs in times)),
        network=Instant(),  # the recorded times include sending
        availability=Always(),
        faults=(),
    )


def served_model(run: Run) -> str | None:
    """Return which model a live run served, or None for a simulation."""
    if not run.trace_file.is_file():
        return None
    with open_trace(run.trace_file) as db:
        stored = db.execute("SELECT value FROM facts WHERE key = ?", (SERVED,)).fetchone()
    return None if stored is None else str(stored[0])


@dataclass(frozen=True)
class RecordedSite:
    """A site of a live run, as the trace describes it."""

    examples: int  # the last number it reported
    reachable: tuple[tuple[float, bool], ...]  # (time, reachable) at each change, starting at 0


def recorded_sites(run: Run) -> tuple[list[RecordedSite], float]:
    """Return every site that answered, in client order, and the time of the last event."""
    with open_trace(run.trace_file) as db:
        answered = sorted(c for (c,) in db.execute("SELECT DISTINCT client FROM trace WHERE kind = 'arrive'"))
        end = db.execute("SELECT MAX(now) FROM trace").fetchone()[0] or 0.0
        return [_recorded_site(db, client) for client in answered], float(end)


def _recorded_site(db: sqlite3.Connection, client: int) -> RecordedSite:
    """Read the examples and the reachability of one site from a trace."""
    examples, there = 1, {0.0: False}
    query = "SELECT now, kind, examples, detail FROM trace WHERE client = ? ORDER BY seq"
    for now, kind, count, detail in db.execute(query, (client,)):
        examples = count or examples
        if kind in ("back", "dispatch"):
            there[now] = True
        elif kind == "left" or (kind == "lost" and detail in DEPARTURE_REASONS):
            there[now] = False
    changes: list[tuple[float, bool]] = []
    for now, here in sorted(there.items()):
        if not changes or changes[-1][1] != here:
            changes.append((now, here))
    return RecordedSite(examples, tuple(changes))


def _seconds_per_step(db: sqlite3.Connection) -> list[list[float]]:
    """Return the seconds per step of every job, for each site that answered, in client order."""
    times: dict[int, list[float]] = {}
    for client, seconds, steps in db.execute(JOB_TIMES):
        times.setdefault(client, []).append(max(seconds, MIN_ROUND_TRIP) / max(steps, 1))
    return [times[client] for client in sorted(times)]
