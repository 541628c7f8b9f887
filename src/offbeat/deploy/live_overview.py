"""A live run at a glance: its sites, versions, how old updates are, what was refused. All of it is read off the run
folder, while the run goes on or afterwards.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from offbeat.core.errors import RunError
from offbeat.deploy.status_files import Standing
from offbeat.engine.trace_file import read_only
from offbeat.metrics.client_names import roster

LIVE = "live"  # the folder within a run's that its processes use
# as `experiment.folder` names them, which is not imported: the door answers without torch
TRACE, MODEL = "run.sqlite", "model.safetensors"
TRAINING_SECONDS = "training_seconds"  # the note that the engine makes of each answer, as `core.jobs` has it

# per client: what became of its tickets
COUNTS = """
SELECT client, SUM(kind = 'arrive'), SUM(kind IN ('refuse', 'reject')), SUM(kind = 'lost'),
       AVG(CASE WHEN kind = 'arrive' THEN version - base_version END), MAX(examples)
FROM trace WHERE client IS NOT NULL GROUP BY client
"""
TRIPS = """
SELECT d.client, AVG(a.now - d.now) FROM trace d JOIN trace a ON a.ticket = d.ticket AND a.kind = 'arrive'
WHERE d.kind = 'dispatch' GROUP BY d.client
"""
TRAINED = """
SELECT t.client, AVG(n.value) FROM notes n JOIN trace t ON t.ticket = n.ticket AND t.kind = 'arrive'
WHERE n.key = ? GROUP BY t.client
"""
NOW = """
SELECT client, kind FROM trace WHERE seq IN (SELECT MAX(seq) FROM trace WHERE client IS NOT NULL
       AND kind IN ('dispatch', 'arrive', 'lost', 'left', 'back', 'refuse', 'reject') GROUP BY client)
"""
AWAY = "away"
DOING = {"dispatch": "at work", "left": AWAY, "lost": AWAY}


def overview(folder: Path) -> dict[str, Any]:
    """Plain values, as they can be sent. RunError where there is no live run."""
    trace, complete = folder / TRACE, (folder / MODEL).is_file()
    known, standing = roster(folder), Standing.read(folder / LIVE)
    if not (folder / LIVE).is_dir():
        raise RunError(f"{folder} is not a live run: 'offbeat serve' makes one, 'offbeat show' is for others")
    found: dict[str, Any] = {
        "state": "ended" if complete else _state(standing),
        "reason": standing.reason if standing and not complete else "",
        "began": False,  # or it waits for its first sites
        "now": 0.0,
        "version": 0,
        "updates": 0,
        "metrics": {},
        "sites": [{"name": name, "client": client} for client, name in sorted(known.items())],
    }
    if trace.is_file():
        try:
            with closing(read_only(trace)) as db:
                found.update(_of_trace(db, known))
        except sqlite3.Error as error:
            raise RunError(f"{trace} is not a readable trace: {error}") from None
    if found["state"] == "running" and standing is not None:
        for site in found["sites"]:
            if site["client"] not in standing.here:
                site["doing"] = AWAY
    return found


def _state(standing: Standing | None) -> str:
    if standing is None:
        return "not begun"
    return standing.state if standing.state != "running" or standing.alive() else "no server is there"


def _of_trace(db: sqlite3.Connection, known: dict[int, str]) -> dict[str, Any]:
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'clients'").fetchone():
        return {}  # it is being made
    now, updates = db.execute("SELECT MAX(now), SUM(kind = 'arrive') FROM trace").fetchone()
    version = db.execute("SELECT MAX(version) FROM commits").fetchone()[0]
    newest = "SELECT key, value FROM metrics WHERE seq = (SELECT MAX(seq) FROM metrics)"
    trips, trained = dict(db.execute(TRIPS)), dict(db.execute(TRAINED, (TRAINING_SECONDS,)))
    doing = dict(db.execute(NOW))
    sites = {client: {"name": name, "client": client} for client, name in known.items()}
    for client, arrived, refused, lost, staleness, examples in db.execute(COUNTS):
        sites[client] = {
            "name": known.get(client, f"client {client}"),
            "client": client,
            "doing": DOING.get(doing.get(client, ""), "idle"),
            "examples": examples,
            "updates": arrived,
            "refused": refused,
            "lost": lost,
            "staleness": staleness,
            "training": trained.get(client),
            "round_trip": trips.get(client),
        }
    reason = db.execute("SELECT detail FROM trace WHERE kind = 'stop' ORDER BY seq DESC LIMIT 1").fetchone()
    return {
        "began": now is not None,
        "now": now or 0.0,
        "version": version or 0,
        "updates": updates or 0,
        "metrics": dict(db.execute(newest)),
        "sites": [sites[client] for client in sorted(sites)],
        **({"reason": reason[0]} if reason else {}),
    }


HEADINGS = [
    "site",
    "client",
    "now",
    "examples",
    "updates",
    "refused",
    "lost",
    "staleness",
    "training s",
    "round trip s",
]


def table(sites: list[dict[str, Any]], ended: bool = False) -> list[list[str]]:
    """As it is printed."""

    def number(value: float | None, digits: int = 1) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    rows = []
    for site in sites:
        counts = [
            str(site.get(key, 0) if site.get(key) is not None else "-")
            for key in ("examples", "updates", "refused", "lost")
        ]
        measured = [number(site.get("staleness")), number(site.get("training"), 2), number(site.get("round_trip"), 2)]
        rows.append([str(site["name"]), str(site["client"]), str(site.get("doing", "here")), *counts, *measured])
    whole = [HEADINGS, *rows]
    return [[cell for i, cell in enumerate(row) if not (ended and i == 2)] for row in whole]
