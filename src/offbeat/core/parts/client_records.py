"""Server records about each client: its number of examples, and the time since it was lost.

With `evict_after` a method drops its cache of a client that has been lost (a failed job or an absence) for that many
seconds, as if the client had never reported. Evictions happen before the next event of any client is handled; a timer
would keep a run from ending.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from math import isfinite
from typing import Annotated, Literal

from offbeat.core.protocol import ClientLost, ClientReady, Event, UpdateArrived
from offbeat.core.settings import Must

# seconds for which the cache of a lost client is kept; None: the whole run
EvictAfter = Annotated[
    float | None, Must("must be a positive number of seconds, or none to keep caches", lambda s: s > 0 and isfinite(s))
]


@dataclass(slots=True)
class Absences:
    """Times at which clients were lost; part of a strategy's state."""

    since: dict[int, float] = field(default_factory=dict)  # client -> time it was lost, in order of time

    def update(self, event: Event, evict_after: float | None, exempt: Container[int] = ()) -> list[int]:
        """Record the event and return the clients to evict, except those that are exempt."""
        if evict_after is None:
            return []
        lost = takewhile(lambda client: self.since[client] <= event.now - evict_after, self.since)
        evicted = [client for client in lost if client not in exempt]
        for client in evicted:
            del self.since[client]
        match event:
            case ClientLost():
                self.since.setdefault(event.client, event.now)
            case ClientReady() | UpdateArrived():
                self.since.pop(event.client, None)
        return evicted


ClientWeight = Literal["examples", "equal"]  # p_k: n_k / n, or 1 / N; None: 1


@dataclass(slots=True)
class ClientExampleCounts:
    """The last reported number of examples of each client, and the client weights p_k computed from them."""

    examples: dict[int, int] = field(default_factory=dict)
    total: int = 0

    @staticmethod
    def of(clients: Mapping[int, int], client_weight: str | None) -> ClientExampleCounts:
        """Start with the clients known at the start; without a client weight nothing is counted."""
        return ClientExampleCounts(dict(clients), sum(clients.values())) if client_weight else ClientExampleCounts()

    def update(self, event: Event, client_weight: str | None) -> None:
        """Record the number of examples that an event reports."""
        if client_weight and isinstance(event, (ClientReady, UpdateArrived)):
            self.total += event.num_examples - self.examples.get(event.client, 0)
            self.examples[event.client] = event.num_examples

    def weight(self, client: int, client_weight: str | None) -> float:
        """Return p_k over all clients known so far."""
        if client_weight is None:
            return 1.0
        return self.examples[client] / self.total if client_weight == "examples" else 1.0 / len(self.examples)
