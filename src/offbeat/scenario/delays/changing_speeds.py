"""Clients that become faster or slower while the run goes on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from statistics import fmean
from typing import ClassVar

from offbeat.core import draws
from offbeat.core.errors import ConfigError, require
from offbeat.scenario.client_groups import belongs_to_share, require_share
from offbeat.scenario.delays.delay_law import Delays, Paced, Unit, elapsed_seconds, require_positive
from offbeat.scenario.delays.distributions import Uniform
from offbeat.scenario.recordings import SECONDS, RecordedLaw


@dataclass(frozen=True, kw_only=True)
class Changing(Delays):
    """Another law of delays, with sudden slow-downs and speed-ups: from at[i] on, jobs take factors[i] times as long.

    A job under way feels the change from that moment on. `share` of the clients are concerned.
    """

    delays: Delays = Uniform()
    at: tuple[float, ...]  # virtual seconds, increasing
    factors: tuple[float, ...]  # of the usual time: 5 is slow, 0.2 is fast, 1 is as before
    share: float = 1.0  # of the clients it happens to
    _times: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", tuple(self.at))
        object.__setattr__(self, "factors", tuple(self.factors))
        given = f"{len(self.at)} times and {len(self.factors)} factors"
        require(len(self.at) == len(self.factors) > 0, f"changing delays: {given}: one factor for each time is needed")
        fine = all(t >= 0 and isfinite(t) for t in self.at)
        require(fine, f"changing delays: at = {self.at}: times are finite, 0 or more")
        require(all(a < b for a, b in pairwise(self.at)), f"changing delays: at = {self.at}: times must increase")
        require_positive("changing", **{f"factors[{i}]": factor for i, factor in enumerate(self.factors)})
        require_share("changing delays", self.share)
        already = f"changing delays: {type(self.delays).__name__} already changes with time"
        require(not isinstance(self.delays, Paced), f"{already}: give all times and factors to one")
        object.__setattr__(self, "_times", (float("-inf"), *self.at))

    @property
    def unit(self) -> Unit:
        return self.delays.unit

    @property
    def jitter(self) -> float:
        jitter: float = getattr(self.delays, "jitter", 0.0)
        return jitter

    def mean_of(self, seed: int, client: int) -> float:
        return self.delays.mean_of(seed, client)

    def factor(self, seed: int, client: int, index: int) -> float:
        return self.delays.factor(seed, client, index)

    def covers(self, clients: Iterable[int]) -> None:
        if (covers := getattr(self.delays, "covers", None)) is not None:
            covers(clients)

    def pace(self, seed: int, client: int, at: float) -> float:
        if not self._concerns(seed, client):
            return 1.0
        return (1.0, *self.factors)[bisect_right(self.at, at)]

    def elapsed(self, seed: int, client: int, started: float, seconds: float) -> float:
        if not self._concerns(seed, client):
            return seconds
        return elapsed_seconds(seconds, started, self._times, (1.0, *self.factors))

    def _concerns(self, seed: int, client: int) -> bool:
        return belongs_to_share(self.share, seed, "changing", client)


@dataclass(frozen=True, kw_only=True)
class RecordedDelays(RecordedLaw, Delays):
    """Recorded seconds per local step, from a CSV or Parquet file: columns client, t, seconds_per_step.

    A value holds from its time t on until the next; the last one holds for ever. A job under way feels a change.
    """

    column = SECONDS
    jitter: float = 0.0
    unit: Unit = field(init=False, default="step", repr=False)

    def __post_init__(self) -> None:
        require(self.jitter >= 0 and isfinite(self.jitter), f"delays: jitter = {self.jitter}: must be 0 or more")

    def mean_of(self, seed: int, client: int) -> float:
        """Over the time that was recorded; the last value counts as long as the one before it did."""
        return self.recording.series_of(client).mean

    def factor(self, seed: int, client: int, index: int) -> float:
        return Uniform(jitter=self.jitter).factor(seed, client, index)

    def pace(self, seed: int, client: int, at: float) -> float:
        series = self.recording.series_of(client)
        return series.at(at) / series.mean

    def elapsed(self, seed: int, client: int, started: float, seconds: float) -> float:
        series = self.recording.series_of(client)
        return elapsed_seconds(seconds / series.mean, started, series.times, series.values)


@dataclass(frozen=True, kw_only=True)
class Replayed(Delays):
    """The seconds per step that sites of a live run took, job by job; beyond the record, one of them drawn again.

    'offbeat replay' makes it. A job's time, sending included, is taken to grow with its steps.
    """

    unit: ClassVar[Unit] = "step"
    seconds_per_step: tuple[tuple[float, ...], ...]  # of each client, of its first, second, ... job

    def __post_init__(self) -> None:
        # a file has lists
        object.__setattr__(self, "seconds_per_step", tuple(tuple(map(float, jobs)) for jobs in self.seconds_per_step))
        for client, jobs in enumerate(self.seconds_per_step):
            require(len(jobs) > 0, f"delays: nothing was recorded of client {client}")
            require(
                all(s > 0 and isfinite(s) for s in jobs), f"delays: client {client}: seconds are positive and finite"
            )

    def mean_of(self, seed: int, client: int) -> float:
        return fmean(self.seconds_per_step[client])

    def factor(self, seed: int, client: int, index: int) -> float:
        jobs = self.seconds_per_step[client]
        if index >= len(jobs):
            index = draws.below(len(jobs), seed, "replayed", client, index)
        return jobs[index] / self.mean_of(seed, client)

    def covers(self, clients: Iterable[int]) -> None:
        for client in clients:
            if client >= len(self.seconds_per_step):
                raise ConfigError(
                    f"delays of {len(self.seconds_per_step)} clients were recorded: there is none for {client}"
                )
