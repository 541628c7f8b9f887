"""What a law of delays is: a mean for each client, drawn once, and a factor for each of its jobs.

The mean is the quantile of a distribution at a uniform number keyed by (seed, client); a job's factor is normal around
1, keyed by (seed, client, n-th job). So all methods of one seed meet the same clients, and nothing is stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, Protocol, get_args, runtime_checkable

from offbeat.core import draws
from offbeat.core.errors import require

# seconds of a job, of a local step, or until the answer, whatever is computed for it
Unit = Literal["job", "step", "response"]
MIN_JITTER_FACTOR = 0.05  # the jitter never makes a job shorter than this share of the client's mean


class Delays(Protocol):
    """Laws say `mean_of` and `factor`; whoever inherits this has the rest."""

    @property
    def unit(self) -> Unit: ...

    def mean_of(self, seed: int, client: int) -> float:
        """The client's mean seconds per unit."""
        ...

    def factor(self, seed: int, client: int, index: int) -> float:
        """What this job takes, as a multiple of the client's mean."""
        ...

    def seconds(self, seed: int, client: int, index: int, steps: int) -> float:
        """What the client's n-th job takes."""
        return self.expected(seed, client, steps) * self.factor(seed, client, index)

    def expected(self, seed: int, client: int, steps: int) -> float:
        """What a job of the client takes on average."""
        mean = self.mean_of(seed, client)
        return mean * steps if self.unit == "step" else mean


@runtime_checkable
class Paced(Protocol):
    """What a law has besides if clients become faster or slower while the run goes on."""

    def pace(self, seed: int, client: int, at: float) -> float:
        """How many times its mean the client takes at this time."""
        ...

    def elapsed(self, seed: int, client: int, started: float, seconds: float) -> float:
        """How long it takes from `started` on to do what takes `seconds` at pace 1."""
        ...


@dataclass(frozen=True, kw_only=True)
class DelayDistribution(Delays, ABC):
    """What all distributions share; they differ in `mean_of`."""

    jitter: float = 0.05  # standard deviation of a job's time, relative to the client's mean
    unit: Unit = "job"  # are the times per job, per local step, or response times?

    def __post_init__(self) -> None:
        require(self.jitter >= 0 and isfinite(self.jitter), f"delays: jitter = {self.jitter}: must be 0 or more")
        require_unit(self.unit)

    @abstractmethod
    def mean_of(self, seed: int, client: int) -> float: ...

    def factor(self, seed: int, client: int, index: int) -> float:
        jitter = self.jitter
        if jitter == 0.0:
            return 1.0
        factor = 1.0 + jitter * draws.normal(seed, "jitter", client, index)
        return factor if factor > MIN_JITTER_FACTOR else MIN_JITTER_FACTOR


def speed(seed: int, client: int) -> float:
    """Where the client stands among all, in (0, 1): the same under every law, a large one is slow."""
    return draws.uniform(seed, "speed", client)


def require_unit(unit: str) -> None:
    require(unit in get_args(Unit), f"delays: unit = {unit!r}: must be 'job', 'step' or 'response'")


def require_positive(law: str, **values: float) -> None:
    for name, value in values.items():
        require(value > 0 and isfinite(value), f"{law} delays: {name} = {value}: must be positive and finite")


def elapsed_seconds(amount: float, started: float, times: Sequence[float], rates: Sequence[float]) -> float:
    """How long `amount` takes from `started` on, where one of it takes rates[i] seconds from times[i] on."""
    i = max(bisect_right(times, started) - 1, 0)
    now = started
    while i + 1 < len(times):
        done = (times[i + 1] - now) / rates[i]
        if done >= amount:
            break
        amount -= done
        i += 1
        now = times[i]
    return now - started + amount * rates[i]
