"""Laws of delays that change during the run or follow a record: sudden changes, recordings, sites of a live run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, isfinite
from statistics import fmean
from typing import Annotated, ClassVar

from offbeat.core import draws
from offbeat.core.errors import ConfigError, require
from offbeat.core.settings import Amount, Must, UpToOne
from offbeat.scenario.client_groups import belongs_to_share
from offbeat.scenario.delays.distributions import Uniform
from offbeat.scenario.network import elapsed_seconds
from offbeat.scenario.recordings import SECONDS, RecordedLaw
from offbeat.scenario.scenario_settings import Rates, ScenarioSettings
from offbeat.scenario.simulated_world import Delays, Paced, Unit

Times = Annotated[
    tuple[float, ...],
    Must(
        "times must be finite, 0 or more, and increase",
        lambda times: all(t >= 0 and isfinite(t) for t in times) and all(a < b for a, b in pairwise(times)),
    ),
]


@dataclass(frozen=True, kw_only=True)
class Changing(ScenarioSettings, Delays):
    """Another law of delays with sudden changes: from at[i] on, jobs take factors[i] times as long.

    A change affects running jobs from that moment on. A `share` of the clients is affected.
    """

    delays: Delays = Uniform()
    at: Times  # virtual seconds, increasing
    factors: Rates  # of the usual time: 5 is slow, 0.2 is fast, 1 is unchanged
    share: UpToOne = 1.0  # of the clients that are affected

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        counts = f"{len(self.at)} times and {len(self.factors)} factors"
        require(len(self.at) == len(self.factors), f"Changing: {counts}: give one factor for each time")
        problem = f"Changing: {type(self.delays).__name__} already changes with time"
        require(not isinstance(self.delays, Paced), f"{problem}: give all times and factors to one law")

    @property
    def unit(self) -> Unit:
        return self.delays.unit

    @property
    def jitter(self) -> float:
        """The jitter of the changed law; 0 if it has none."""
        jitter: float = getattr(self.delays, "jitter", 0.0)
        return jitter

    def mean_of(self, seed: int, client: int) -> float:
        return self.delays.mean_of(seed, client)

    def factor(self, seed: int, client: int, index: int) -> float:
        return self.delays.factor(seed, client, index)

    def covers(self, clients: Iterable[int]) -> None:
        """Check before a run that the changed law has delays for every client."""
        if (covers := getattr(self.delays, "covers", None)) is not None:
            covers(clients)

    def pace(self, seed: int, client: int, at: float) -> float:
        """Return the client's time for a job that starts now and keeps its speed, as a multiple of its mean."""
        changes = belongs_to_share(self.share, seed, "changing", client)
        return (1.0, *self.factors)[bisect_right(self.at, at)] if changes else 1.0

    def elapsed(self, seed: int, client: int, started: float, seconds: float) -> float:
        """Return how long work takes from `started` on if it takes `seconds` at pace 1."""
        if not belongs_to_share(self.share, seed, "changing", client):
            return seconds
        return elapsed_seconds(seconds, started, (-inf, *self.at), (1.0, *self.factors))


@dataclass(frozen=True, kw_only=True)
class RecordedDelays(ScenarioSettings, RecordedLaw, Delays):
    """Recorded seconds per local step, from a CSV or Parquet file: columns client, t, seconds_per_step.

    A value is valid from its time t until the next; the last one is valid forever. A change affects running jobs.
    """

    column = SECONDS
    jitter: Amount = 0.0
    unit: Unit = field(init=False, default="step", repr=False)

    def mean_of(self, seed: int, client: int) -> float:
        """Return the mean over the recorded time; the last value counts as long as the one before it."""
        return self.recording.series_of(client).mean

    def factor(self, seed: int, client: int, index: int) -> float:
        return Uniform(jitter=self.jitter).factor(seed, client, index)

    def pace(self, seed: int, client: int, at: float) -> float:
        """Return the client's time for a job that starts now and keeps its speed, as a multiple of its mean."""
        series = self.recording.series_of(client)
        return series.at(at) / series.mean

    def elapsed(self, seed: int, client: int, started: float, seconds: float) -> float:
        """Return how long work takes from `started` on if it takes `seconds` at pace 1."""
        series = self.recording.series_of(client)
        return elapsed_seconds(seconds / series.mean, started, series.times, series.values)


@dataclass(frozen=True, kw_only=True)
class Replayed(Delays):
    """The seconds per step that sites of a live run took, job by job; after the last one, one of them is drawn again.

    'offbeat replay' writes this law. A job's time, including transfers, is assumed to grow with its steps.
    """

    unit: ClassVar[Unit] = "step"
    seconds_per_step: tuple[tuple[float, ...], ...]  # of each client, for its first, second, ... job

    def __post_init__(self) -> None:
        """Check the settings and set derived fields."""
        # files give lists
        object.__setattr__(self, "seconds_per_step", tuple(tuple(map(float, jobs)) for jobs in self.seconds_per_step))
        for client, jobs in enumerate(self.seconds_per_step):
            require(len(jobs) > 0, f"delays: nothing was recorded of client {client}")
            valid = all(s > 0 and isfinite(s) for s in jobs)
            require(valid, f"delays: client {client}: seconds must be positive and finite")

    def mean_of(self, seed: int, client: int) -> float:
        return fmean(self.seconds_per_step[client])

    def factor(self, seed: int, client: int, index: int) -> float:
        jobs = self.seconds_per_step[client]
        if index >= len(jobs):
            index = draws.below(len(jobs), seed, "replayed", client, index)
        return jobs[index] / self.mean_of(seed, client)

    def covers(self, clients: Iterable[int]) -> None:
        """Check before a run that jobs of every client were recorded."""
        count = len(self.seconds_per_step)
        for client in clients:
            if client >= count:
                raise ConfigError(f"delays of {count} clients were recorded: there is none for client {client}")
