"""Who lives, of the processes of this machine: those that a command started must not outlive it."""

from __future__ import annotations

from pathlib import Path


def running_processes() -> dict[int, int]:
    """Every process and its parent. Who is dead and not yet waited for, by whoever is slow at it, does not live."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            found[int(stat.parent.name)] = int(parent)
    return found


def descendants(pid: int) -> set[int]:
    """Everybody who stems from that process."""
    parents, found = running_processes(), {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def gone(pids: set[int]) -> bool:
    return not pids & running_processes().keys()
