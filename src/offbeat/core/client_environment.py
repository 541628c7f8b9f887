"""The interface between a simulating engine and the world of its clients: durations, availability, data."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from offbeat.core.protocol import LocalWork


class JobTiming(NamedTuple):
    """Duration and outcome of one simulated job."""

    duration: float  # seconds from dispatch to arrival
    expected: float  # estimate before the job; timeouts are multiples of it
    crashes: bool = False  # the client crashes and never answers
    crash_reason: str | None = None  # written to the trace
    duplicate_after: float | None = None  # seconds after which a second copy of the upload arrives


class ClientEnvironment(Protocol):
    """Durations, availability and data of simulated clients, as pure functions of the arguments."""

    def time_job(self, client: int, index: int, work: LocalWork, num_examples: int, started: float) -> JobTiming:
        """Return how long a job takes and whether it succeeds."""
        ...

    def next_available(self, client: int, now: float) -> float:
        """Return the first time >= now at which the client is reachable; inf if there is none."""
        ...

    def next_departure(self, client: int, now: float) -> float:
        """Return when the client, reachable now, becomes unreachable; inf if it never does."""
        ...

    def num_examples(self, client: int, index: int, now: float) -> int:
        """Return how many of the client's examples have arrived by now, before its job number `index`."""
        ...
