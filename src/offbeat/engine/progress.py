"""Counters of a run, its status for watchers, and its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from offbeat.core.errors import RunError

REFUSALS_BEFORE_BACKOFF = 3  # refusals in a row after which a client waits before it is offered work
MIN_LOST_JOBS = 10  # failed jobs without any success after which a run cannot continue
NOT_FINITE = "not finite"  # beginning of the reason of a run that diverged


def is_divergence(reason: str | None) -> bool:
    """Return whether a run that ended for this reason diverged."""
    return reason is not None and reason.startswith(NOT_FINITE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    reason: str  # "seconds", "updates", "target", INTERRUPTED, NOTHING_LEFT, NOT_FINITE with details, or the strategy's
    now: float
    version: int
    updates: int
    model: Tensor
    metrics: Mapping[str, float]
    server_seconds: float  # host time spent inside the strategy
    server_bytes: int  # the largest size of its tensors

    def costs(self) -> dict[str, float]:
        """Return the costs of the server as facts for the trace."""
        return {"server_seconds": self.server_seconds, "server_bytes": self.server_bytes}


@dataclass(frozen=True, slots=True)
class Status:
    """The progress of a run, for watchers."""

    now: float
    share: float  # finished part of the run, between 0 and 1
    version: int
    updates: int
    at_work: int  # number of open tickets
    age: float | None  # how many versions ago they were sent, on average
    metrics: Mapping[str, float]
    here: tuple[int, ...] = ()  # reachable clients of a live run


@dataclass(slots=True)
class Progress:
    """Counters that the coordinator keeps beside the ledger."""

    updates: int = 0
    failures: int = 0
    since_accepted: int = 0  # refused or lost jobs since the last accepted update
    refusals: dict[int, int] = field(default_factory=dict)  # client -> number of refusals in a row
    server_seconds: float = 0.0

    def record_failure(self, reason: str) -> None:
        """Count a job that raised; raise RunError if the first MIN_LOST_JOBS jobs all did."""
        self.failures += 1
        if self.failures >= MIN_LOST_JOBS and self.updates == 0:
            raise RunError(f"the first {MIN_LOST_JOBS} local trainings all {reason}")

    def record_refusal(self, client: int, job_seconds: float) -> float:
        """Count a refused update; return the seconds that its client waits before it is offered work again."""
        self.refusals[client] = self.refusals.get(client, 0) + 1
        excess = self.refusals[client] - REFUSALS_BEFORE_BACKOFF
        return 0.0 if excess < 0 else job_seconds * 2 ** min(excess, 6)

    def is_hopeless(self, clients: int) -> bool:
        """Return whether so many jobs in a row were lost that no update can be expected."""
        return self.since_accepted >= max(MIN_LOST_JOBS, 5 * clients)
