"""The interface of delay laws: a mean for each client, drawn once, and a factor for each of its jobs.

The mean is the quantile of a distribution at a uniform number keyed by (seed, client). A job's factor is normal around
1, keyed by (seed, client, n-th job). So all methods of a seed see the same clients, and nothing is stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from offbeat.core import draws
from offbeat.core.settings import Amount
from offbeat.scenario.scenario_settings import ScenarioSettings, former_names

# the seconds are those of a job, of a local step, or until the response whatever the work of the job
Unit = Literal["job", "step", "response"]
MIN_JITTER_FACTOR = 0.05  # jitter never makes a job shorter than this share of the client's mean


class Delays(Protocol):
    """A law of delays defines `unit`, `mean_of` and `factor`; subclasses inherit the other methods."""

    @property
    def unit(self) -> Unit: ...

    def mean_of(self, seed: int, client: int) -> float:
        """Return the client's mean seconds per unit."""
        ...

    def factor(self, seed: int, client: int, index: int) -> float:
        """Return the time of the client's n-th job as a multiple of its mean."""
        ...

    def seconds(self, seed: int, client: int, index: int, steps: int) -> float:
        """Return the time of the client's n-th job."""
        return self.expected(seed, client, steps) * self.factor(seed, client, index)

    def expected(self, seed: int, client: int, steps: int) -> float:
        """Return the mean time of a job of the client."""
        mean = self.mean_of(seed, client)
        return mean * steps if self.unit == "step" else mean


@runtime_checkable
class Paced(Protocol):
    """A law of delays has these methods too if clients become faster or slower during the run."""

    def pace(self, seed: int, client: int, at: float) -> float:
        """Return the client's time for a job that starts now and keeps its speed, as a multiple of its mean."""
        ...

    def elapsed(self, seed: int, client: int, started: float, seconds: float) -> float:
        """Return how long work takes from `started` on if it takes `seconds` at pace 1."""
        ...


@dataclass(frozen=True, kw_only=True)
class DelayDistribution(ScenarioSettings, Delays, ABC):
    """Base class of laws with a distribution of means and the same jitter; subclasses define `mean_of`."""

    jitter: Amount = 0.05  # standard deviation of a job's time, relative to the client's mean
    unit: Unit = "job"  # whether times are per job, per local step, or response times

    @abstractmethod
    def mean_of(self, seed: int, client: int) -> float: ...

    def factor(self, seed: int, client: int, index: int) -> float:
        jitter = self.jitter
        if jitter == 0.0:
            return 1.0
        factor = 1.0 + jitter * draws.normal(seed, "jitter", client, index)
        return factor if factor > MIN_JITTER_FACTOR else MIN_JITTER_FACTOR


def speed(seed: int, client: int) -> float:
    """Return the client's rank among all in (0, 1); it is the same under every law, and large ranks are slow."""
    return draws.uniform(seed, "speed", client)


def elapsed_seconds(amount: float, started: float, times: Sequence[float], rates: Sequence[float]) -> float:
    """Return how long `amount` takes from `started` on if a unit of it takes rates[i] seconds from times[i] on."""
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


__getattr__ = former_names(__name__, {"SHORTEST": "MIN_JITTER_FACTOR", "Varying": "DelayDistribution"})
