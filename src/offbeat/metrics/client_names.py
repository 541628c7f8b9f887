"""Names of clients. Clients are numbers; a run records the names of those that have one (`bern.npz`, a hospital).

A simulation stores them as a fact of its trace, a live run in sites.json. In SQL:

    SELECT name.value, COUNT(*) FROM trace JOIN json_each((SELECT value FROM facts WHERE key = 'names')) name
    ON name.key = client WHERE kind = 'arrive' GROUP BY client
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from offbeat.core.errors import RunError

Key = TypeVar("Key")
Value = TypeVar("Value")

NAMES_FACT = "names"  # JSON: client -> name
SITES_FILE = "sites.json"  # written by engine/live/sites.py
MAX_LISTED_CLIENTS = 40  # larger populations are not listed client by client


def client_label(client: int, names: Mapping[int, str]) -> str:
    """Return the name of a client, or its number."""
    return names.get(client, str(client))


def names_fact(names: Mapping[int, str]) -> dict[str, str]:
    """Return the fact that a trace stores; none if no client has a name."""
    return {NAMES_FACT: json.dumps({str(client): name for client, name in names.items()})} if names else {}


def read_names(db: sqlite3.Connection) -> dict[int, str]:
    """Read the names from a trace."""
    return read_json_fact(db, NAMES_FACT, lambda client, name: (int(client), str(name)))


def read_json_fact(
    db: sqlite3.Connection, key: str, convert: Callable[[str, object], tuple[Key, Value]]
) -> dict[Key, Value]:
    """Read a fact of a trace that is a JSON object, and convert its items; empty if it was not recorded."""
    stored = db.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
    try:
        return dict(convert(name, value) for name, value in json.loads(stored[0]).items()) if stored else {}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise RunError(f"the trace's fact {key} is damaged: {str(stored[0])[:40]!r}") from None


def read_site_names(folder: Path) -> dict[int, str]:
    """Read the names of a live run's sites; empty for a simulation."""
    try:
        stored = json.loads((folder / SITES_FILE).read_text(encoding="utf-8"))
        return {int(site["client"]): str(site["name"]) for site in stored["sites"]}
    except FileNotFoundError:
        return {}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(f"{folder / SITES_FILE} is damaged: {error}") from None


def values_by_name(by_client: Mapping[int, float], names: Mapping[int, str]) -> list[tuple[int, float]]:
    """Return the values of all clients that have a name, sorted by name; empty if they are too many to list."""
    pairs = sorted(((c, value) for c, value in by_client.items() if c in names), key=lambda pair: names[pair[0]])
    return pairs if len(pairs) <= MAX_LISTED_CLIENTS else []
