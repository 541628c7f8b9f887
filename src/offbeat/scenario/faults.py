"""Faults of clients: crashing jobs, lost and duplicate uploads, damaged and poisoned models.

A fault affects a share of the clients, and each of their jobs with a probability, as a pure function of (seed, client,
n-th job). Faults of the transfer change a job's timing. Faults of the result change it after training and before the
admission gate, so jobs stay pure and workers do not know about faults.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite, nan
from typing import Annotated, ClassVar

from torch import Tensor

from offbeat.core import draws
from offbeat.core.client_environment import JobTiming
from offbeat.core.jobs import Job, Result
from offbeat.core.settings import Amount, Must, UpToOne
from offbeat.core.vector import Layout
from offbeat.scenario.client_groups import belongs_to_share
from offbeat.scenario.scenario_settings import Count, ScenarioSettings, former_names


@dataclass(frozen=True, kw_only=True)
class Fault(ScenarioSettings, ABC):
    """Base class of all faults. Two faults of one class affect the same clients, so use each class once."""

    name: ClassVar[str]
    probability: UpToOne = 1.0  # for each job of an affected client
    share: UpToOne = 1.0  # of the clients

    def strikes(self, seed: int, client: int, index: int) -> bool:
        """Check whether the fault affects the client's n-th job."""
        if not belongs_to_share(self.share, seed, f"{self.name} clients", client):
            return False
        return self.probability >= 1.0 or draws.uniform(seed, self.name, client, index) < self.probability

    def on_the_way(self, seed: int, client: int, index: int, timing: JobTiming) -> JobTiming:
        """Return the duration and outcome of a job as the fault changes them."""
        return timing

    def spoilt(self, layout: Layout, job: Job, local: Tensor) -> Tensor:
        """Return the trained model as the fault changes it; `local` itself is not modified."""
        return local


@dataclass(frozen=True, kw_only=True)
class Crash(Fault):
    """The client crashes while it trains; its ticket times out, then it can take work again."""

    name = "crash"
    why: ClassVar[str] = "crashed"
    probability: UpToOne = 0.1

    def on_the_way(self, seed: int, client: int, index: int, timing: JobTiming) -> JobTiming:
        return timing if timing.crashes else timing._replace(crashes=True, crash_reason=self.why)


@dataclass(frozen=True, kw_only=True)
class LostUpload(Crash):
    """The client completes its training, but its upload never arrives; its ticket times out."""

    name = "lost_upload"
    why = "upload lost"


@dataclass(frozen=True, kw_only=True)
class DuplicateUpload(Fault):
    """The upload arrives twice, the second copy up to `within` seconds after the first; it is counted and dropped."""

    name = "duplicate_upload"
    probability: UpToOne = 0.1
    within: Amount = 10.0  # seconds

    def on_the_way(self, seed: int, client: int, index: int, timing: JobTiming) -> JobTiming:
        return timing._replace(duplicate_after=self.within * draws.uniform(seed, "duplicate after", client, index))


class ResultFault(Fault):
    """A fault that changes the uploaded model; subclasses define `spoilt`."""

    @abstractmethod
    def spoilt(self, layout: Layout, job: Job, local: Tensor) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Corrupted(ResultFault):
    """Some trained entries of the uploaded model, drawn for each job, are NaN."""

    name = "corrupted"
    probability: UpToOne = 0.1
    entries: Count = 1  # number of damaged entries

    def spoilt(self, layout: Layout, job: Job, local: Tensor) -> Tensor:
        damaged = layout.trainable(local).clone()
        for i in range(self.entries):
            damaged[draws.below(damaged.numel(), job.seed, "corrupted entry", job.client, job.index, i)] = nan
        return layout.with_trainable(local, damaged)


@dataclass(frozen=True, kw_only=True)
class Scaled(ResultFault):
    """Poisoning: the client uploads `factor` times the change that it trained."""

    name = "scaled"
    share: UpToOne = 0.1
    factor: Annotated[float, Must("must be finite", isfinite)] = 10.0

    def spoilt(self, layout: Layout, job: Job, local: Tensor) -> Tensor:
        return _scale_update(layout, job, local, self.factor)


@dataclass(frozen=True, kw_only=True)
class SignFlipped(ResultFault):
    """Poisoning: the client uploads the opposite of the change that it trained."""

    name = "sign_flipped"
    share: UpToOne = 0.1

    def spoilt(self, layout: Layout, job: Job, local: Tensor) -> Tensor:
        return _scale_update(layout, job, local, -1.0)


FAULTS: dict[str, type[Fault]] = {
    "crash": Crash,
    "lost_upload": LostUpload,
    "duplicate_upload": DuplicateUpload,
    "corrupted": Corrupted,
    "scaled": Scaled,
    "sign_flipped": SignFlipped,
}


def _scale_update(layout: Layout, job: Job, local: Tensor, factor: float) -> Tensor:
    """Return base + factor delta in the trainable entries; the gate would notice changed statistics and counters."""
    base = layout.trainable(job.base)
    return layout.with_trainable(local, base + factor * (layout.trainable(local) - base))


def result_modifier(faults: tuple[Fault, ...], layout: Layout) -> Callable[[Job, Result], Result] | None:
    """Return a function that applies these faults to a result, or None if no fault changes results."""
    active = [fault for fault in faults if isinstance(fault, ResultFault)]
    if not active:
        return None

    def apply_faults(job: Job, result: Result) -> Result:
        for fault in active:
            if fault.strikes(job.seed, job.client, job.index):
                result = replace(result, local=fault.spoilt(layout, job, result.local))
        return result

    return apply_faults


__getattr__ = former_names(__name__, {"Spoiling": "ResultFault", "spoiler": "result_modifier"})
