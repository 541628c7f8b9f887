"""Status of a live run: its sites, versions, staleness and refused updates, and the files in which processes report it.

Everything is read from the run folder, during the run or afterwards. The command and its server app exchange options
and status through small JSON files in RUN/live.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from offbeat.core.errors import RunError
from offbeat.engine import open_read_only
from offbeat.metrics import read_site_names

LIVE_FOLDER = "live"  # subfolder of a run for the files of its processes
# as in `experiment.run.run_folder`, which is not imported: the gateway answers without torch
TRACE_FILE, MODEL_FILE = "run.sqlite", "model.safetensors"
TRAINING_SECONDS = "training_seconds"  # key of the engine's note for each answer, as in `core.jobs`

# outcomes of the tickets of each client
TICKET_COUNTS = """
SELECT client, SUM(kind = 'arrive'), SUM(kind IN ('refuse', 'reject')), SUM(kind = 'lost'),
       AVG(CASE WHEN kind = 'arrive' THEN version - base_version END), MAX(examples)
FROM trace WHERE client IS NOT NULL GROUP BY client
"""
ROUND_TRIPS = """
SELECT d.client, AVG(a.now - d.now) FROM trace d JOIN trace a ON a.ticket = d.ticket AND a.kind = 'arrive'
WHERE d.kind = 'dispatch' GROUP BY d.client
"""
TRAINING_TIMES = """
SELECT t.client, AVG(n.value) FROM notes n JOIN trace t ON t.ticket = n.ticket AND t.kind = 'arrive'
WHERE n.key = ? GROUP BY t.client
"""
LAST_EVENTS = """
SELECT client, kind FROM trace WHERE seq IN (SELECT MAX(seq) FROM trace WHERE client IS NOT NULL
       AND kind IN ('dispatch', 'arrive', 'lost', 'left', 'back', 'refuse', 'reject') GROUP BY client)
"""
StatusFields = dict[str, Any]  # a JSON document
AWAY = "away"
ACTIVITY = {"dispatch": "at work", "left": AWAY, "lost": AWAY}


def overview(folder: Path) -> StatusFields:
    """Return the status as plain values; raise RunError if the folder is not a live run."""
    trace, complete = folder / TRACE_FILE, (folder / MODEL_FILE).is_file()
    known, app_status = read_site_names(folder), AppStatus.read(folder / LIVE_FOLDER)
    if not (folder / LIVE_FOLDER).is_dir():
        raise RunError(f"{folder} is not a live run; use 'offbeat show' for simulations")
    status: StatusFields = {
        "state": "ended" if complete else _describe_state(app_status),
        "reason": app_status.reason if app_status and not complete else "",
        "began": False,  # false while it waits for its first sites
        "now": 0.0,
        "version": 0,
        "updates": 0,
        "metrics": {},
        "sites": [{"name": name, "client": client} for client, name in sorted(known.items())],
    }
    if trace.is_file():
        try:
            with closing(open_read_only(trace)) as db:
                status.update(_read_trace(db, known))
        except sqlite3.Error as error:
            raise RunError(f"{trace} is not a readable trace: {error}") from None
    if status["state"] == "running" and app_status is not None:
        for site in status["sites"]:
            if site["client"] not in app_status.reachable:
                site["doing"] = AWAY
    return status


def _describe_state(app_status: AppStatus | None) -> str:
    """Describe the state of a run that is not complete."""
    if app_status is None:
        return "not started"
    return app_status.state if app_status.state != "running" or app_status.is_alive() else "no server is running"


def _read_trace(db: sqlite3.Connection, known: dict[int, str]) -> StatusFields:
    """Return the progress of the run and of each site from its trace."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'clients'").fetchone():
        return {}  # the trace is being created
    now, updates = db.execute("SELECT MAX(now), SUM(kind = 'arrive') FROM trace").fetchone()
    version = db.execute("SELECT MAX(version) FROM commits").fetchone()[0]
    newest = "SELECT key, value FROM metrics WHERE seq = (SELECT MAX(seq) FROM metrics)"
    trips, trained = dict(db.execute(ROUND_TRIPS)), dict(db.execute(TRAINING_TIMES, (TRAINING_SECONDS,)))
    doing = dict(db.execute(LAST_EVENTS))
    sites = {client: {"name": name, "client": client} for client, name in known.items()}
    for client, arrived, refused, lost, staleness, examples in db.execute(TICKET_COUNTS):
        sites[client] = {
            "name": known.get(client, f"client {client}"),
            "client": client,
            "doing": ACTIVITY.get(doing.get(client, ""), "idle"),
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


COUNTS = ["examples", "updates", "refused", "lost"]
HEADINGS = ["site", "client", "now", *COUNTS, "staleness", "training s", "round trip s"]


def site_table(sites: list[StatusFields], ended: bool = False) -> list[list[str]]:
    """Format the sites as rows of a table."""

    def number(value: float | None, digits: int = 1) -> str:
        """Format a number that may be missing."""
        return "-" if value is None else f"{value:.{digits}f}"

    rows = []
    for site in sites:
        counts = [str(site.get(key, 0) if site.get(key) is not None else "-") for key in COUNTS]
        measured = [number(site.get("staleness")), number(site.get("training"), 2), number(site.get("round_trip"), 2)]
        rows.append([str(site["name"]), str(site["client"]), str(site.get("doing", "here")), *counts, *measured])
    return [[cell for i, cell in enumerate(row) if not (ended and i == 2)] for row in (HEADINGS, *rows)]


LIVE_FOLDER_VARIABLE = "OFFBEAT_SERVE"  # environment variable of the app: the folder of these files


def live_folder() -> Path:
    """Return the folder of status files of the app in this process."""
    return Path(os.environ[LIVE_FOLDER_VARIABLE])


@dataclass(frozen=True)
class _StatusFile:
    """A value that is exchanged through a JSON file, which is replaced atomically."""

    FILE: ClassVar[str]

    def write(self, live: Path) -> None:
        """Write the value to its file in this folder."""
        path = live / self.FILE
        half = path.with_suffix(f".{os.getpid()}.tmp")
        half.write_text(json.dumps(asdict(self)))
        half.replace(path)

    @classmethod
    def read(cls, live: Path) -> Self | None:
        """Return the value in this folder; None if there is none or it is not readable."""
        try:
            return cls(**json.loads((live / cls.FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    @classmethod
    def remove(cls, live: Path) -> None:
        (live / cls.FILE).unlink(missing_ok=True)


@dataclass(frozen=True)
class AppOptions(_StatusFile):
    """Options of the server app."""

    FILE: ClassVar[str] = "app_options.json"

    run: str  # the run folder
    keys: bool = True  # sites are identified by their keys
    min_sites: int = 1
    record: str = "checkpoint"  # or full
    checkpoint_every: float = 30.0
    compression: str = "none"  # of uploads
    model: str | None = None  # a site's file whose model is served

    @classmethod
    def load(cls, live: Path) -> AppOptions:
        """Read the options; raise RunError if they are missing."""
        options = cls.read(live)
        if options is None:
            raise RunError(f"{live} has no options for a server: start it with 'offbeat serve'")
        return options


@dataclass(frozen=True)
class RegisteredSites(_StatusFile):
    """Sites whose keys are registered at Flower: node -> (name, fingerprint)."""

    FILE: ClassVar[str] = "registered_sites.json"

    nodes: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class AppStatus(_StatusFile):
    """State of the server app."""

    FILE: ClassVar[str] = "app_status.json"

    state: Literal["running", "ended", "failed"]
    process: int
    reason: str = ""
    reachable: list[int] = field(default_factory=list)  # clients whose sites are connected
    expected: bool = True  # a known failure, which a restart would only repeat

    def is_alive(self) -> bool:
        """Check that the process runs on this machine and is not a zombie."""
        try:
            os.kill(self.process, 0)
            state = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[0]
        except ProcessLookupError:
            return False
        except OSError:  # it belongs to another user, or there is no /proc
            return True
        return state not in ("Z", "X")
