"""Clients that are gone: since when, and whose caches are given up after `evict_after` seconds.

A method that keeps a vector for each client keeps it for ever unless `evict_after` is set. Then a client that was lost
(a job that failed, or an absence) and was not heard of for that long loses it, and counts as one that was never heard.
It is looked at with the next event of anybody's: nothing is computed in between, and a timer would only keep a run from
ending. Who comes back in that very event comes too late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import Annotated

from offbeat.core.protocol import ClientLost, ClientReady, Event, UpdateArrived
from offbeat.core.settings import Must

# seconds what is cached of a lost client is kept; None: for ever
EvictAfter = Annotated[
    float | None,
    Must("must be a positive number of seconds, or none to keep what is cached", lambda s: s > 0 and isfinite(s)),
]


def _anybody(client: int) -> bool:
    return False


@dataclass(slots=True)
class Absences:
    """Part of a strategy's state."""

    since: dict[int, float] = field(default_factory=dict)  # client -> when it was lost; those lost first come first

    def hear(self, event: Event, evict_after: float | None, unless: Callable[[int], bool] = _anybody) -> list[int]:
        """Book the event; whose caches are given up now. `unless`: not yet, what it sent last is still to be used."""
        if evict_after is None:
            return []
        gone = self._gone(event.now - evict_after, unless)
        match event:
            case ClientLost():
                self.since.setdefault(event.client, event.now)
            case ClientReady() | UpdateArrived():
                self.since.pop(event.client, None)
        return gone

    def _gone(self, latest: float, unless: Callable[[int], bool]) -> list[int]:
        found: list[int] = []
        for client, since in self.since.items():
            if since > latest:
                break
            if not unless(client):
                found.append(client)
        for client in found:
            del self.since[client]
        return found
