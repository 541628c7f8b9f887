"""The plan of a job: everything about it that is decided before its first step, on the host, from its own key.

Which examples make up each step, how they are shown, at what rate, how many steps there are, and the noise of dropout:
a pure function of the job, so that every worker takes the same steps, whether it trains one client or a stack of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.core import draws
from offbeat.core.jobs import Job
from offbeat.core.protocol import Phase
from offbeat.training import batches
from offbeat.training.augmentation import CropFlip

# positions of examples, the sizes of its batches, and how each is shown
Epoch = tuple[Tensor, list[int], Tensor | None]

Pace = tuple[float, tuple[Phase, ...], tuple[int, ...]]  # the job's rate, its phases, the steps of each

_ORDER = "batches"
_KEY = attrgetter("seed", "client", "index")


def order_seeds(jobs: Collection[Job]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Of the generator that each job's orders are drawn from: what `draws.generator` is seeded with."""
    return draws.bits_of(_ORDER, map(_KEY, jobs)) >> np.uint64(1)


def order_source(job: Job) -> torch.Generator:
    return draws.generator(job.seed, _ORDER, job.client, job.index)


@dataclass(slots=True)  # one is made for every job: freezing them would take as long as all the rest of it
class Plan:
    """Draw epochs phase by phase, in order: they come from one generator."""

    job: Job
    lr: float  # of the job; a phase may have its own
    phases: tuple[Phase, ...]
    counts: tuple[int, ...]  # steps of each phase
    batch: int
    merge: bool  # may no batch be of one example?
    augment: CropFlip | None
    _sources: dict[str, torch.Generator] | None = None  # made when they are first drawn from

    @property
    def noise(self) -> int:
        """The seed of whatever the model draws."""
        return draws.bits(self.job.seed, "noise", self.job.client, self.job.index) >> 1

    @property
    def steps(self) -> int:
        return sum(self.counts)

    @property
    def largest(self) -> int:
        """How many examples its largest batch has."""
        examples = self.job.num_examples
        return min(examples, self.batch) + (self.merge and batches.merges(examples, self.batch))

    def rate(self, phase: int) -> float:
        own = self.phases[phase].lr
        return self.lr if own is None else own

    def epochs(self, phase: int) -> Iterator[Epoch]:
        """Until they make the steps of that phase."""
        for positions, sizes in batches.epochs(
            self.job.num_examples, self.batch, self.merge, self.counts[phase], self._source(_ORDER)
        ):
            yield (
                positions,
                sizes,
                None if self.augment is None else self.augment.draw(len(positions), self._source("augment")),
            )

    def batches(self, phase: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """(positions, how each is shown) step by step."""
        for positions, sizes, moves in self.epochs(phase):
            shown = (None,) * len(sizes) if moves is None else torch.split(moves, sizes)
            yield from zip(torch.split(positions, sizes), shown, strict=True)

    def _source(self, purpose: str) -> torch.Generator:
        if self._sources is None:
            self._sources = {}
        if purpose not in self._sources:
            self._sources[purpose] = draws.generator(self.job.seed, purpose, self.job.client, self.job.index)
        return self._sources[purpose]
