"""What clients are called. A client is a number; where it is somebody (`bern.npz`, a hospital that joined), the run
knows the name, once: a simulation as a fact of its trace, a live run in sites.json.

In SQL:  SELECT name.value, COUNT(*) FROM trace JOIN json_each((SELECT value FROM facts WHERE key = 'names')) name
         ON name.key = client WHERE kind = 'arrive' GROUP BY client
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from offbeat.core.errors import RunError

NAMES = "names"  # the fact: client -> name, as JSON
SITES = "sites.json"  # as engine/live/site_ids.py writes it
MOST = 40  # clients that are told one by one


def called(client: int, names: Mapping[int, str]) -> str:
    return names.get(client, str(client))


def facts(names: Mapping[int, str]) -> dict[str, str]:
    return {NAMES: json.dumps({str(client): name for client, name in names.items()})} if names else {}


def names(db: sqlite3.Connection) -> dict[int, str]:
    """As the trace has them."""
    stored = db.execute("SELECT value FROM facts WHERE key = ?", (NAMES,)).fetchone()
    try:
        return {int(client): str(name) for client, name in json.loads(stored[0]).items()} if stored else {}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise RunError(f"the trace's fact {NAMES} is damaged: {str(stored[0])[:40]!r}") from None


def roster(folder: Path) -> dict[int, str]:
    """Of the sites of a live run; none where it is a simulation."""
    try:
        stored = json.loads((folder / SITES).read_text(encoding="utf-8"))
        return {int(site["client"]): str(site["name"]) for site in stored["sites"]}
    except FileNotFoundError:
        return {}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(f"{folder / SITES} is damaged: {error}") from None


def named(by_client: Mapping[int, float], names: Mapping[int, str]) -> list[tuple[int, float]]:
    """What is told of each client that is called something, by name; nothing of very many."""
    found = sorted(((c, value) for c, value in by_client.items() if c in names), key=lambda pair: names[pair[0]])
    return found if len(found) <= MOST else []
