"""From a live run to a simulation with clients like its sites: what would another strategy have done?"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace

from offbeat.core.errors import ConfigError
from offbeat.experiment.run.run_folder import Run
from offbeat.experiment.spec.config import Experiment
from offbeat.metrics import trace_summary
from offbeat.metrics.trace_summary import SERVED
from offbeat.results.client_timeline import LEFT
from offbeat.scenario.availability import Always
from offbeat.scenario.delays.replayed_delays import Replayed
from offbeat.scenario.network import Instant

OWN_FILE = "live, the model of a site's file"  # what SERVED says where it was not the experiment's
MOST = 2000  # jobs a client whose times are kept

JOBS = """
SELECT d.client, a.now - d.now, a.steps FROM trace d JOIN trace a ON a.ticket = d.ticket AND a.kind = 'arrive'
WHERE d.kind = 'dispatch' ORDER BY d.client, d.seq
"""
SHORTEST = 1e-6  # seconds of a round trip


def like(run: Run, data_named: bool) -> Experiment:
    """The run's experiment in virtual time: as many clients as sites answered, each as slow as it was. `data_named`:
    somebody says which data to use, since the sites' own lies with them.
    """
    experiment = run.runnable()
    if not run.trace_file.is_file():
        raise ConfigError(f"{run.folder} has not begun: there is nothing to replay")
    with trace_summary.open_trace(run.trace_file) as db:
        times = _times(db)
    model = served(run)
    if model is None:
        raise ConfigError(f"{run.folder} is a simulation: change it and run it again with 'offbeat run'")
    if model == OWN_FILE and not data_named:
        raise ConfigError(
            f"the data of {run.folder} lies with its sites: say which data is to stand in for it, with --set data=…"
        )
    if not times:
        raise ConfigError(f"no site of {run.folder} has answered yet: there is nothing to replay")
    return replace(
        experiment,
        clients=len(times),
        delays=Replayed(seconds_per_step=tuple(tuple(jobs[:MOST]) for jobs in times)),
        network=Instant(),  # sending was part of the times
        availability=Always(),
        faults=(),
    )


def served(run: Run) -> str | None:
    """With which model a live run was; None of a simulation."""
    if not run.trace_file.is_file():
        return None
    with trace_summary.open_trace(run.trace_file) as db:
        stored = db.execute("SELECT value FROM facts WHERE key = ?", (SERVED,)).fetchone()
    return None if stored is None else str(stored[0])


@dataclass(frozen=True)
class Site:
    """What a trace tells of a site besides its times."""

    examples: int  # as it said last
    there: tuple[tuple[float, bool], ...]  # from when on it could be reached, or not; from 0 on


def sites(run: Run) -> tuple[list[Site], float]:
    """Of every site that answered, in the order of `like`, and how long the run has been watched."""
    with trace_summary.open_trace(run.trace_file) as db:
        answered = sorted(c for (c,) in db.execute("SELECT DISTINCT client FROM trace WHERE kind = 'arrive'"))
        end = db.execute("SELECT MAX(now) FROM trace").fetchone()[0] or 0.0
        return [_site(db, client) for client in answered], float(end)


def _site(db: sqlite3.Connection, client: int) -> Site:
    examples, there = 1, {0.0: False}
    query = "SELECT now, kind, examples, detail FROM trace WHERE client = ? ORDER BY seq"
    for now, kind, count, detail in db.execute(query, (client,)):
        examples = count or examples
        if kind in ("back", "dispatch"):
            there[now] = True
        elif kind == "left" or (kind == "lost" and detail in LEFT):
            there[now] = False
    changes: list[tuple[float, bool]] = []
    for now, here in sorted(there.items()):
        if not changes or changes[-1][1] != here:
            changes.append((now, here))
    return Site(examples, tuple(changes))


def _times(db: sqlite3.Connection) -> list[list[float]]:
    """Seconds per step of every site that answered, in the order of their numbers."""
    found: dict[int, list[float]] = {}
    for client, seconds, steps in db.execute(JOBS):
        found.setdefault(client, []).append(max(seconds, SHORTEST) / max(steps, 1))
    return [found[client] for client in sorted(found)]
