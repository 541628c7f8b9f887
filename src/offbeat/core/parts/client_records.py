"""Clients that are gone: since when, and whose caches are given up after `evict_after` seconds.

A method that keeps a vector for each client keeps it for ever unless `evict_after` is set. Then a client that was lost
(a job that failed, or an absence) and was not heard of for that long loses it, and counts as one that was never heard.
It is looked at with the next event of anybody's: nothing is computed in between, and a timer would only keep a run from
ending. Who comes back in that very event comes too late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Annotated, Literal

from offbeat.core.protocol import ClientLost, ClientReady, Event, UpdateArrived
from offbeat.core.settings import Must

# seconds what is cached of a lost client is kept; None: for ever
EvictAfter = Annotated[
    float | None,
    Must("must be a positive number of seconds, or none to keep what is cached", lambda s: s > 0 and isfinite(s)),
]


def _never(client: int) -> bool:
    return False


@dataclass(slots=True)
class Absences:
    """Part of a strategy's state."""

    since: dict[int, float] = field(default_factory=dict)  # client -> when it was lost; those lost first come first

    def update(self, event: Event, evict_after: float | None, unless: Callable[[int], bool] = _never) -> list[int]:
        """Book the event; whose caches are given up now. `unless`: not yet, what it sent last is still to be used."""
        if evict_after is None:
            return []
        gone = self._evicted(event.now - evict_after, unless)
        match event:
            case ClientLost():
                self.since.setdefault(event.client, event.now)
            case ClientReady() | UpdateArrived():
                self.since.pop(event.client, None)
        return gone

    def _evicted(self, latest: float, unless: Callable[[int], bool]) -> list[int]:
        found: list[int] = []
        for client, since in self.since.items():
            if since > latest:
                break
            if not unless(client):
                found.append(client)
        for client in found:
            del self.since[client]
        return found


ClientWeight = Literal["examples", "equal"]


@dataclass(slots=True)
class ExampleCounts:
    """How many examples each client has, as last heard. Newcomers count from when they appear."""

    examples: dict[int, int] = field(default_factory=dict)
    total: int = 0

    @staticmethod
    def of(clients: Mapping[int, int], client_weight: str | None) -> ExampleCounts:
        """Nothing is counted, and nothing kept, where no weight is asked for."""
        return ExampleCounts(dict(clients), sum(clients.values())) if client_weight else ExampleCounts()

    def update(self, event: Event, client_weight: str | None) -> None:
        if client_weight and isinstance(event, (ClientReady, UpdateArrived)):
            self.total += event.num_examples - self.examples.get(event.client, 0)
            self.examples[event.client] = event.num_examples

    def weight(self, client: int, client_weight: str | None) -> float:
        if client_weight is None:
            return 1.0
        return self.examples[client] / self.total if client_weight == "examples" else 1.0 / len(self.examples)
