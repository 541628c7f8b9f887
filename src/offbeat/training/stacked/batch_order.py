"""Which examples the jobs of a stack look at, step by step: drawn for all of them at once, as each would draw alone.

An order is a shuffle of a client's examples by the generator of its job (`training/plan.py`). On a GPU with a compiler
they are all shuffled there (`training/cuda/randperm_triton.py`), which takes of the host no more than a seed for each job; elsewhere
torch shuffles them one after the other. Either way the numbers are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.core.jobs import Job
from offbeat.training import batches
from offbeat.training.client_data import Placed
from offbeat.training.plan import order_seeds, order_source
from offbeat.training.stacked.convolution import has_kernels

log = logging.getLogger("offbeat")


@dataclass(frozen=True, slots=True)
class Orders:
    """Of a stack of jobs, each with one phase and batches that are all of one size but for the last of an epoch, which
    may be shorter or, where it would be of one example and those are merged, longer by that.
    """

    order: Tensor  # (jobs, longest): of each job positions among its examples, epoch after epoch
    examples: Tensor  # (jobs,)
    steps: Tensor  # (jobs,)
    starts: Tensor  # (jobs,): where the examples of each begin in `rows`, or among all examples there are
    rows: Tensor | None
    each: Tensor  # (jobs,): steps of an epoch
    batch: int
    most: int  # steps of the longest job

    def at(self, first: int, steps: int, width: int) -> tuple[Tensor, Tensor]:
        """Of these steps: the rows of each job's batch, (steps, jobs, width), and how many of them count (the others
        are its first again); none for who is done.
        """
        device, n = self.order.device, self.examples
        step = torch.arange(first, first + steps, device=device)[:, None]
        epoch = torch.div(step, self.each, rounding_mode="floor")
        at = step - epoch * self.each  # of this epoch
        passed = at * self.batch
        sizes = torch.where(at == self.each - 1, n - passed, self.batch)
        sizes = torch.where(step < self.steps, sizes, 0)
        place = torch.arange(width, device=device)
        # what fills a batch up is of the same batch: BatchNorm makes of others what it likes
        begin = torch.where(sizes > 0, epoch * n + passed, 0)
        where = begin[:, :, None] + torch.where(place < sizes[:, :, None], place, 0)
        own = torch.arange(len(n), device=device) * self.order.shape[1]
        chosen = self.order.view(-1).index_select(0, (where + own[:, None]).view(-1)).view(where.shape)
        chosen = chosen + self.starts[:, None]
        if self.rows is not None:
            chosen = self.rows.index_select(0, chosen.view(-1)).view(where.shape)
        return chosen, sizes


def together(placed: Sequence[Placed]) -> list[Placed]:
    """The same, with the rows of all that have such in one table: so jobs of several runs can be looked up at once."""
    found, parts, end = [], [], 0
    for one in placed:
        if one.rows is None or one.start is None:
            found.append(one)
            continue
        found.append(one._replace(start=partial(_moved, one.start, end)) if end else one)
        parts.append(one.rows)
        end += len(one.rows)
    if not parts:
        return found
    table = torch.cat(parts)
    return [one if one.rows is None else one._replace(rows=table) for one in found]


def _moved(start: Callable[[int], int], by: int, client: int) -> int:
    return start(client) + by


def orders_of(
    jobs: Sequence[Job], taken: Sequence[int], placed: Sequence[Placed], room: int, batch: int, merge: bool
) -> Orders:
    """Of jobs that take so many steps each, in a stack with room for so many of them; who is too few does nothing."""
    device = placed[0].pair[0].device
    starts, rows = _placed(jobs, placed, device)
    told = np.ones((6, room), dtype=np.int64)
    told[1:4, len(jobs) :] = 0
    counts, steps, begins, epochs, each, seeds = told[:, : len(jobs)]
    counts[:], steps[:], begins[:] = [job.num_examples for job in jobs], taken, starts
    different, which = np.unique(counts, return_inverse=True)
    each[:] = np.array([batches.count(count, batch, merge) for count in different.tolist()])[which]
    epochs[:] = -(-steps // each)
    drawn_there = has_kernels(device.type) and _same_draws()
    if drawn_there:
        seeds[:] = order_seeds(jobs)
    there, longest = sent(told, device), int((counts * epochs).max())
    if drawn_there:
        from offbeat.training.cuda.randperm_triton import shuffled

        order = shuffled(there[5], there[0], there[3], longest, (int(counts.max()), int(epochs.max())))
    else:
        order = one_by_one(jobs, taken, torch.zeros((room, longest), dtype=torch.int32), batch, merge).to(device)
    return Orders(order, there[0], there[1], there[2], rows, there[4], batch, int(steps.max()))


def sent(numbers: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """To a device, from pinned memory: from any other the host would have to wait."""
    held = torch.from_numpy(numbers)
    return held.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else held.to(device)


def one_by_one(jobs: Sequence[Job], taken: Sequence[int], table: Tensor, batch: int, merge: bool) -> Tensor:
    """The table, filled with what torch draws, a row each."""
    for row, job, steps in zip(table[: len(jobs)], jobs, taken, strict=True):
        at, n = 0, job.num_examples
        for positions, _ in batches.epochs(n, batch, merge, steps, order_source(job)):
            row[at : at + len(positions)] = positions
            at += n
    return table


def _placed(jobs: Sequence[Job], placed: Sequence[Placed], device: torch.device) -> tuple[list[int], Tensor | None]:
    """Where the examples of each job begin, and in what."""
    first = placed[0]
    if all(one.start is not None and one.rows is first.rows for one in {id(one): one for one in placed}.values()):
        return [one.start(job.client) for one, job in zip(placed, jobs, strict=True) if one.start], first.rows
    own = [one.of(job.client)[: job.num_examples] for one, job in zip(placed, jobs, strict=True)]
    starts = np.cumsum([0, *map(len, own[:-1])]).tolist()
    return starts, torch.cat(own).to(device)


@cache
def _same_draws() -> bool:
    """Does a GPU here shuffle as torch does on the host? It is tried once: another version may draw otherwise."""
    from offbeat.training.cuda.randperm_triton import shuffled

    seeds, found = (1, 2**62 + 12345), []
    for seed in seeds:
        g = torch.Generator()
        g.manual_seed(seed)
        found.append(torch.cat([torch.randperm(777, generator=g) for _ in range(3)]))
    counts, epochs = torch.tensor([777, 777], device="cuda"), torch.tensor([3, 3], device="cuda")
    ours = shuffled(torch.tensor(seeds, device="cuda"), counts, epochs, 3 * 777, (777, 3))
    same = torch.equal(ours.cpu().long(), torch.stack(found))
    if not same:
        log.warning("this version of torch shuffles in another way: orders of examples are drawn on the host")
    return same
