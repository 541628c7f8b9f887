"""The plan of a job: everything about it that is decided before its first step, on the host, from its own key.

Which examples make up each step, how they are shown, at what rate, how many steps there are, and the noise of dropout:
a pure function of the job, so that every worker takes the same steps, whether it trains one client or a stack of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from offbeat.client import batches
from offbeat.client.augmentation import CropFlip
from offbeat.core import draws
from offbeat.core.jobs import Job
from offbeat.core.protocol import Phase

# positions of examples, the sizes of its batches, and how each is shown
Epoch = tuple[Tensor, list[int], Tensor | None]


@dataclass(frozen=True, slots=True)
class Plan:
    """Draw epochs phase by phase, in order: they come from one generator."""

    job: Job
    lr: float  # of the job; a phase may have its own
    phases: tuple[Phase, ...]
    counts: tuple[int, ...]  # steps of each phase
    batch: int
    merge: bool  # may no batch be of one example?
    augment: CropFlip | None
    _order: torch.Generator
    _moves: torch.Generator | None

    @property
    def noise(self) -> int:
        """The seed of whatever the model draws."""
        return draws.bits(self.job.seed, "noise", self.job.client, self.job.index) >> 1

    @property
    def steps(self) -> int:
        return sum(self.counts)

    def rate(self, phase: int) -> float:
        own = self.phases[phase].lr
        return self.lr if own is None else own

    def epochs(self, phase: int) -> Iterator[Epoch]:
        """Until they make the steps of that phase."""
        for positions, sizes in batches.epochs(
            self.job.num_examples, self.batch, self.merge, self.counts[phase], self._order
        ):
            yield (
                positions,
                sizes,
                None if self.augment is None or self._moves is None else self.augment.draw(len(positions), self._moves),
            )

    def batches(self, phase: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """(positions, how each is shown) step by step."""
        for positions, sizes, moves in self.epochs(phase):
            shown = (None,) * len(sizes) if moves is None else torch.split(moves, sizes)
            yield from zip(torch.split(positions, sizes), shown, strict=True)


def plan_of(
    job: Job,
    lr: float,
    phases: tuple[Phase, ...],
    counts: tuple[int, ...],
    batch: int,
    merge: bool,
    augment: CropFlip | None,
) -> Plan:
    key = job.seed, job.client, job.index
    return Plan(
        job=job,
        lr=lr,
        phases=phases,
        counts=counts,
        batch=batch,
        merge=merge,
        augment=augment,
        _order=draws.generator(key[0], "batches", *key[1:]),
        _moves=None if augment is None else draws.generator(key[0], "augment", *key[1:]),
    )
