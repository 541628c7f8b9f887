"""The plan of a job: batches, augmentation, learning rates, number of steps and the seed of dropout.

A plan is computed on the host before the first step. It is a pure function of the job, so every worker takes the same
steps, whether it trains one client or a stack of clients.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.core import draws
from offbeat.core.errors import DataError
from offbeat.core.jobs import Job
from offbeat.core.protocol import Phase
from offbeat.training.client_data import ClientData

Epoch = tuple[Tensor, list[int], Tensor | None]  # positions of examples, batch sizes, augmentation of each example
Schedule = tuple[float, tuple[Phase, ...], tuple[int, ...]]  # learning rate of the job, phases, steps of each phase

_ORDER = "batches"
_job_key = attrgetter("seed", "client", "index")


def order_seeds(jobs: Collection[Job]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the seed of each job's batch order, equal to the seed that `draws.generator` uses."""
    return draws.bits_for_keys(_ORDER, map(_job_key, jobs)) >> np.uint64(1)


def order_generator(job: Job) -> torch.Generator:
    return draws.generator(job.seed, _ORDER, job.client, job.index)


@dataclass(slots=True)  # not frozen: one is made per job, and freezing would double its cost
class Plan:
    """The decisions of one job before its first step.

    Epochs must be drawn phase by phase, in order, because they come from one generator.
    """

    job: Job
    lr: float  # of the job; a phase may have its own
    phases: tuple[Phase, ...]
    phase_steps: tuple[int, ...]  # steps of each phase
    batch: int
    merge_last: bool  # merge a last batch of one example into the batch before
    augment: CropFlip | None
    _generators: dict[str, torch.Generator] | None = None  # made on first use

    @property
    def noise_seed(self) -> int:
        """The seed of dropout and of other random numbers that the model draws."""
        return draws.bits(self.job.seed, "noise", self.job.client, self.job.index) >> 1

    @property
    def steps(self) -> int:
        return sum(self.phase_steps)

    @property
    def largest_batch(self) -> int:
        """The number of examples in the largest batch."""
        examples = self.job.num_examples
        return min(examples, self.batch) + (self.merge_last and has_single_last(examples, self.batch))

    def learning_rate(self, phase: int) -> float:
        phase_lr = self.phases[phase].lr
        return self.lr if phase_lr is None else phase_lr

    def epochs(self, phase: int) -> Iterator[Epoch]:
        """Yield the epochs that make up the steps of this phase."""
        examples, steps = self.job.num_examples, self.phase_steps[phase]
        for positions, sizes in shuffled_epochs(examples, self.batch, self.merge_last, steps, self._generator(_ORDER)):
            moves = self.augment and self.augment.draw(len(positions), self._generator("augment"))
            yield positions, sizes, moves

    def batches(self, phase: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the positions of the examples of each step, and how each example is augmented."""
        for positions, sizes, moves in self.epochs(phase):
            batch_moves = (None,) * len(sizes) if moves is None else torch.split(moves, sizes)
            yield from zip(torch.split(positions, sizes), batch_moves, strict=True)

    def _generator(self, purpose: str) -> torch.Generator:
        if self._generators is None:
            self._generators = {}
        if purpose not in self._generators:
            self._generators[purpose] = draws.generator(self.job.seed, purpose, self.job.client, self.job.index)
        return self._generators[purpose]


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether a module needs batches of at least two examples for its statistics."""
    return any(isinstance(m, _BATCH_NORMS) for m in module.modules())


def has_single_last(examples: int, batch: int) -> bool:
    """Return whether the last of several batches of an epoch has a single example."""
    return examples > batch and examples % batch == 1


def batches_per_epoch(examples: int, batch: int, merge: bool) -> int:
    """Return the number of batches in one epoch."""
    return -(-examples // batch) - (merge and has_single_last(examples, batch))


def batch_sizes(examples: int, batch: int, merge: bool) -> list[int]:
    """Return the batch sizes of one epoch; `merge` merges a last batch of one example into the batch before."""
    full = batches_per_epoch(examples, batch, merge) - 1
    return [batch] * full + [examples - full * batch]


def shuffled_epochs(
    examples: int, batch: int, merge: bool, steps: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, list[int]]]:
    """Yield the order of the examples and the batch sizes of each epoch; the last epoch may end early.

    The order depends only on the generator, so every worker takes the same steps.
    """
    sizes = batch_sizes(examples, batch, merge)
    while steps > 0:
        used = sizes[:steps]
        steps -= len(used)
        yield torch.randperm(examples, generator=generator)[: sum(used)], used


MAX_SHIFT = 4  # pixels in each direction


class CropFlip:
    """Image augmentation: shift by up to four pixels, padding with black, and mirror half of the images.

    The shifts of a whole epoch are drawn from the job's key before anything is computed. So a job gives the same bits
    on every worker, independent of the number of batches that are gathered at once.
    """

    def __init__(self, data: ClientData) -> None:
        if len(data.input_shape) != 3:
            needs = "training.augment = 'crop-flip' needs images (channels, height, width)"
            raise DataError(f"{needs}, but the inputs have shape {data.input_shape}: leave training.augment out")
        self.black = data.channel_minima()[:, None, None]  # 0 in byte images, its value after standardization in others

    def draw(self, images: int, generator: torch.Generator) -> Tensor:
        """Draw for each image the rows and columns to shift by, and whether to mirror: shape (images, 3)."""
        shifts = torch.randint(-MAX_SHIFT, MAX_SHIFT + 1, (images, 2), generator=generator)
        return torch.cat([shifts, torch.randint(0, 2, (images, 1), generator=generator)], dim=1)

    def __call__(self, x: Tensor, moves: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        down, right, mirrored = moves.to(x.device).unbind(1)
        # (n, height) and (n, width): source row and column of each pixel
        rows = torch.arange(height, device=x.device) + down[:, None]
        unmirrored = torch.arange(width, device=x.device)
        columns = torch.where(mirrored[:, None] == 1, unmirrored.flip(0), unmirrored) + right[:, None]
        rows_inside, columns_inside = (rows >= 0) & (rows < height), (columns >= 0) & (columns < width)
        inside = rows_inside[:, None, :, None] & columns_inside[:, None, None, :]
        moved = x.gather(2, rows.clamp(0, height - 1)[:, None, :, None].expand(n, channels, height, width))
        moved = moved.gather(3, columns.clamp(0, width - 1)[:, None, None, :].expand(n, channels, height, width))
        return torch.where(inside, moved, self.black.to(x.device))
