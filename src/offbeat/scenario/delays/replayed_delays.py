"""Clients that take as long as sites of a live run did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import ClassVar

from offbeat.core import draws
from offbeat.core.errors import ConfigError, require
from offbeat.scenario.delays.delay_law import Delays, Unit


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
