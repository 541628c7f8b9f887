"""Shell completion ('offbeat --install-completion').

The names are in completion_names.txt, because reading them from the registries imports torch, which is too slow for a
prompt. A test keeps the file up to date.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer

NAMES_FILE = Path(__file__).parent / "completion_names.txt"


def names_by_kind() -> dict[str, list[str]]:
    """Return the names of each kind, in the order of the registries."""
    lines = (line.split() for line in NAMES_FILE.read_text(encoding="utf-8").splitlines())
    return {kind: names for kind, *names in lines}


def complete_kind(incomplete: str) -> list[str]:
    """Complete a kind of names, such as strategies."""
    return [kind for kind in names_by_kind() if kind.startswith(incomplete)]


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a name of the kind before it."""
    return [name for name in names_by_kind().get(ctx.params.get("what") or "", []) if name.startswith(incomplete)]


def complete_strategies(incomplete: str) -> list[str]:
    """Complete the last of several strategies separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names_by_kind()["strategies"] if name.startswith(last)]


def complete_source(incomplete: str) -> Iterator[str]:
    """Complete presets, then experiment files and folders."""
    yield from (name for name in names_by_kind()["presets"] if name.startswith(incomplete))
    path = Path(incomplete)
    folder, start = (path, "") if incomplete.endswith("/") else (path.parent, path.name)
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.name.startswith(start) and not entry.name.startswith("."):
            if entry.is_dir():
                yield f"{entry}/"
            elif entry.suffix in (".yaml", ".yml"):
                yield str(entry)
