"""What goes wrong: jobs that crash, uploads that are lost or come twice, models that are damaged or poisoned.

A fault strikes a share of the clients, each of their jobs with a probability, as a pure function of (seed, client, n-th
job). Faults on the way change the trip; faults of the content change the result, after the training and before the
admission gate, so jobs stay pure and workers know nothing of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite, nan
from typing import ClassVar

from torch import Tensor

from offbeat.core import draws
from offbeat.core.client_environment import JobTiming
from offbeat.core.errors import require
from offbeat.core.jobs import Job, Result
from offbeat.core.vector import Layout
from offbeat.scenario.client_groups import belongs_to_share, require_share


@dataclass(frozen=True, kw_only=True)
class Fault(ABC):
    """What all faults share. Two entries of one kind strike the same clients: give them different kinds."""

    name: ClassVar[str]
    probability: float = 1.0  # for each job of a client concerned
    share: float = 1.0  # of the clients

    def __post_init__(self) -> None:
        require(0 <= self.probability <= 1, f"{self.name}: probability = {self.probability}: lies between 0 and 1")
        require_share(self.name, self.share)

    def strikes(self, seed: int, client: int, index: int) -> bool:
        if not belongs_to_share(self.share, seed, f"{self.name} clients", client):
            return False
        return self.probability >= 1.0 or draws.uniform(seed, self.name, client, index) < self.probability

    def on_the_way(self, seed: int, client: int, index: int, trip: JobTiming) -> JobTiming:
        """What becomes of a trip that the fault strikes."""
        return trip

    def spoilt(self, layout: Layout, job: Job, local: Tensor) -> Tensor:
        """What becomes of a model that the fault strikes; the given one is left as it is."""
        return local


@dataclass(frozen=True, kw_only=True)
class Crash(Fault):
    """The client dies while it trains; its ticket times out, then it can take work again."""

    name = "crash"
    why: ClassVar[str] = "crashed"
    probability: float = 0.1

    def on_the_way(self, seed: int, client: int, index: int, trip: JobTiming) -> JobTiming:
        return trip if trip.crashes else trip._replace(crashes=True, crash_reason=self.why)


@dataclass(frozen=True, kw_only=True)
class LostUpload(Crash):
    """The client trains to the end, but its upload never arrives; its ticket times out."""

    name = "lost_upload"
    why = "upload lost"


@dataclass(frozen=True, kw_only=True)
class DuplicateUpload(Fault):
    """The upload arrives twice, the second copy up to `within` seconds after the first; it is counted and dropped."""

    name = "duplicate_upload"
    probability: float = 0.1
    within: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        fine = self.within >= 0 and isfinite(self.within)
        require(fine, f"duplicate_upload: within = {self.within}: must be 0 or more")

    def on_the_way(self, seed: int, client: int, index: int, trip: JobTiming) -> JobTiming:
        return trip._replace(duplicate_after=self.within * draws.uniform(seed, "duplicate after", client, index))


class ResultFault(Fault):
    """A fault of what is sent, not of the way."""

    @abstractmethod
    def spoilt(self, layout: Layout, job: Job, local: Tensor) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Corrupted(ResultFault):
    """Some trained entries of the uploaded model, drawn for each job, are not a number."""

    name = "corrupted"
    probability: float = 0.1
    entries: int = 1  # how many

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.entries >= 1, f"corrupted: entries = {self.entries}: at least 1")

    def spoilt(self, layout: Layout, job: Job, local: Tensor) -> Tensor:
        damaged = layout.trainable(local).clone()
        for i in range(self.entries):
            damaged[draws.below(damaged.numel(), job.seed, "corrupted entry", job.client, job.index, i)] = nan
        return layout.with_trainable(local, damaged)


@dataclass(frozen=True, kw_only=True)
class Scaled(ResultFault):
    """Poison: the client moves `factor` times as far as it was trained to."""

    name = "scaled"
    share: float = 0.1
    factor: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(isfinite(self.factor), f"scaled: factor = {self.factor}: must be finite")

    def spoilt(self, layout: Layout, job: Job, local: Tensor) -> Tensor:
        return _scaled_update(layout, job, local, self.factor)


@dataclass(frozen=True, kw_only=True)
class SignFlipped(ResultFault):
    """Poison: the client moves the opposite way, by as much as it was trained to."""

    name = "sign_flipped"
    share: float = 0.1

    def spoilt(self, layout: Layout, job: Job, local: Tensor) -> Tensor:
        return _scaled_update(layout, job, local, -1.0)


FAULTS: dict[str, type[Fault]] = {
    "crash": Crash,
    "lost_upload": LostUpload,
    "duplicate_upload": DuplicateUpload,
    "corrupted": Corrupted,
    "scaled": Scaled,
    "sign_flipped": SignFlipped,
}


def _scaled_update(layout: Layout, job: Job, local: Tensor, factor: float) -> Tensor:
    """base + factor delta over the trainable entries; statistics and counters stay, or the gate would notice."""
    base = layout.trainable(job.base)
    return layout.with_trainable(local, base + factor * (layout.trainable(local) - base))


def result_modifier(faults: tuple[Fault, ...], layout: Layout) -> Callable[[Job, Result], Result] | None:
    """What these faults do to a result; None if nothing, so that results need not be looked at."""
    spoiling = [fault for fault in faults if isinstance(fault, ResultFault)]
    if not spoiling:
        return None

    def spoil(job: Job, result: Result) -> Result:
        for fault in spoiling:
            if fault.strikes(job.seed, job.client, job.index):
                result = replace(result, local=fault.spoilt(layout, job, result.local))
        return result

    return spoil
