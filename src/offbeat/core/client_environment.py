"""What an engine that simulates asks of the world its clients live in."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from offbeat.core.protocol import LocalWork


class Trip(NamedTuple):
    """How long one job takes, from dispatch to arrival."""

    duration: float
    expected: float  # what one would have guessed: time-outs are multiples of it
    crashes: bool = False  # the client dies on the way and never answers
    why: str | None = None  # it does not: for the trace
    again: float | None = None  # a second copy of the upload arrives this much later than the first


class Surroundings(Protocol):
    """Pure functions of their arguments: asking twice, or in another order, gives the same answers."""

    def trip(self, client: int, index: int, work: LocalWork, num_examples: int, started: float) -> Trip: ...

    def next_available(self, client: int, now: float) -> float:
        """The first time >= now at which the client is reachable; inf if it never is again."""
        ...

    def leaves(self, client: int, now: float) -> float:
        """When the client, reachable now, goes away next; inf if it stays."""
        ...

    def num_examples(self, client: int, index: int, now: float) -> int:
        """How much of the client's data has arrived by now, before its job number `index`."""
        ...
