"""What a virtual run remembers of itself, how it ends, and the quiet it runs in."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from offbeat.core.errors import RunError

PATIENCE = 3  # refusals in a row after which a client is offered work with back-off
HOPELESS = 10  # failed jobs and not one success: the fault is not the clients'


@dataclass(frozen=True, slots=True)
class Outcome:
    reason: str  # "seconds", "updates", "target", INTERRUPTED, OVER, NOT_FINITE and what was, or the strategy's own
    now: float
    version: int
    updates: int
    model: Tensor
    metrics: Mapping[str, float]
    server_seconds: float  # host time spent inside the strategy
    server_bytes: int = 0  # the most its tensors took

    def costs(self) -> dict[str, float]:
        """What the server side took, for the trace's facts."""
        return {"server_seconds": self.server_seconds, "server_bytes": self.server_bytes}


@dataclass(frozen=True, slots=True)
class Status:
    """How a run is doing, for whoever watches it."""

    now: float
    share: float  # how far the run is, between 0 and 1
    version: int
    updates: int
    at_work: int  # tickets under way
    age: float | None  # how many versions ago they were sent, on average
    metrics: Mapping[str, float]
    here: tuple[int, ...] = ()  # of a live run: who can be reached


@dataclass(slots=True)
class Progress:
    """What the coordinator counts beside the ledger."""

    updates: int = 0
    failures: int = 0
    since_accepted: int = 0  # refused or lost since the last update that was accepted
    refusals: dict[int, int] = field(default_factory=dict)  # client -> refused in a row
    server_seconds: float = 0.0

    def failed(self, reason: str) -> None:
        """Book a job that raised; one after the other and no success: there is nothing to simulate."""
        self.failures += 1
        if self.failures >= HOPELESS and self.updates == 0:
            raise RunError(f"the first {HOPELESS} local trainings all {reason}")

    def refused(self, client: int, lasted: float) -> float:
        """Book an update that was refused; how many seconds its client waits before it is offered work again."""
        self.refusals[client] = self.refusals.get(client, 0) + 1
        patience = self.refusals[client] - PATIENCE
        return 0.0 if patience < 0 else lasted * 2 ** min(patience, 6)

    def hopeless(self, clients: int) -> bool:
        """Has nothing come of so many jobs in a row that nothing will?"""
        return self.since_accepted >= max(HOPELESS, 5 * clients)


@contextmanager
def rare_collection() -> Iterator[None]:
    """Nothing in the loop makes reference cycles, but its many small objects would set the collector off all the
    time.
    """
    before = gc.get_threshold()
    gc.set_threshold(100_000, before[1], before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)
