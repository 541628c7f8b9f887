"""Draw the order of the examples for all jobs of a stack, equal to the order each job would draw alone.

On a GPU with Triton the permutations are drawn there (`training/cuda/randperm_triton.py`), otherwise by torch on the
host. The numbers are the same.
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
from offbeat.training.client_data import ExampleIndex
from offbeat.training.descent import batches_per_epoch, order_generator, order_seeds, shuffled_epochs
from offbeat.training.stacked.convolution import has_kernels

log = logging.getLogger("offbeat")


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """The order of the examples of a stack of jobs, each with one phase.

    All batches have the same size, except the last of an epoch.
    """

    order: Tensor  # (jobs, longest): of each job positions among its examples, epoch after epoch
    examples: Tensor  # (jobs,)
    steps: Tensor  # (jobs,)
    starts: Tensor  # (jobs,): where the examples of each begin in `rows`, or among all examples there are
    rows: Tensor | None
    each: Tensor  # (jobs,): steps of an epoch
    batch: int
    most: int  # steps of the longest job

    def batch_rows(self, first: int, steps: int, width: int) -> tuple[Tensor, Tensor]:
        """Return the rows of each job's batch, (steps, jobs, width), and the number of rows that count.

        The other rows repeat the first one. Finished jobs have no rows that count.
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
        row_starts = torch.arange(len(n), device=device) * self.order.shape[1]
        chosen = self.order.view(-1).index_select(0, (where + row_starts[:, None]).view(-1)).view(where.shape)
        chosen = chosen + self.starts[:, None]
        if self.rows is not None:
            chosen = self.rows.index_select(0, chosen.view(-1)).view(where.shape)
        return chosen, sizes


def concatenate_indexes(placed: Sequence[ExampleIndex]) -> list[ExampleIndex]:
    """Put the rows of several runs into one table, so their jobs can be looked up together."""
    results, parts, end = [], [], 0
    for index in placed:
        if index.rows is None or index.start_of is None:
            results.append(index)
            continue
        results.append(index._replace(start_of=partial(_shifted_start, index.start_of, end)) if end else index)
        parts.append(index.rows)
        end += len(index.rows)
    if not parts:
        return results
    table = torch.cat(parts)
    return [index if index.rows is None else index._replace(rows=table) for index in results]


def _shifted_start(start: Callable[[int], int], by: int, client: int) -> int:
    return start(client) + by


def draw_batch_order(
    jobs: Sequence[Job],
    taken: Sequence[int],
    placed: Sequence[ExampleIndex],
    rows_of_stack: int,
    batch: int,
    merge: bool,
) -> BatchOrder:
    """Draw the order for jobs with these numbers of steps, in a stack of `clients` rows; surplus rows do nothing."""
    device = placed[0].pair[0].device
    starts, rows = _index_positions(jobs, placed, device)
    job_table = np.ones((6, rows_of_stack), dtype=np.int64)
    job_table[1:4, len(jobs) :] = 0
    counts, steps, begins, epochs, each, seeds = job_table[:, : len(jobs)]
    counts[:], steps[:], begins[:] = [job.num_examples for job in jobs], taken, starts
    different, which = np.unique(counts, return_inverse=True)
    each[:] = np.array([batches_per_epoch(count, batch, merge) for count in different.tolist()])[which]
    epochs[:] = -(-steps // each)
    drawn_there = has_kernels(device.type) and _matches_torch_randperm()
    if drawn_there:
        seeds[:] = order_seeds(jobs)
    there, longest = copy_to_device(job_table, device), int((counts * epochs).max())
    if drawn_there:
        from offbeat.training.cuda.randperm_triton import draw_permutations

        order = draw_permutations(there[5], there[0], there[3], longest, (int(counts.max()), int(epochs.max())))
    else:
        order = draw_orders_on_host(
            jobs, taken, torch.zeros((rows_of_stack, longest), dtype=torch.int32), batch, merge
        ).to(device)
    return BatchOrder(order, there[0], there[1], there[2], rows, there[4], batch, int(steps.max()))


def copy_to_device(numbers: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """Copy to a device from pinned memory, without waiting."""
    host = torch.from_numpy(numbers)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def draw_orders_on_host(jobs: Sequence[Job], taken: Sequence[int], table: Tensor, batch: int, merge: bool) -> Tensor:
    """Fill the table with permutations drawn by torch, one row per job."""
    for row, job, steps in zip(table[: len(jobs)], jobs, taken, strict=True):
        at, n = 0, job.num_examples
        for positions, _ in shuffled_epochs(n, batch, merge, steps, order_generator(job)):
            row[at : at + len(positions)] = positions
            at += n
    return table


def _index_positions(
    jobs: Sequence[Job], placed: Sequence[ExampleIndex], device: torch.device
) -> tuple[list[int], Tensor | None]:
    """Return where the examples of each job start, and the table of rows."""
    first = placed[0]
    distinct = {id(index): index for index in placed}.values()
    if all(index.start_of is not None and index.rows is first.rows for index in distinct):
        return [
            index.start_of(job.client) for index, job in zip(placed, jobs, strict=True) if index.start_of
        ], first.rows
    client_rows = [index.rows_of(job.client)[: job.num_examples] for index, job in zip(placed, jobs, strict=True)]
    starts = np.cumsum([0, *map(len, client_rows[:-1])]).tolist()
    return starts, torch.cat(client_rows).to(device)


@cache
def _matches_torch_randperm() -> bool:
    """Return whether this GPU draws the same permutations as torch on the host, which other versions may not."""
    from offbeat.training.cuda.randperm_triton import draw_permutations

    seeds, results = (1, 2**62 + 12345), []
    for seed in seeds:
        g = torch.Generator()
        g.manual_seed(seed)
        results.append(torch.cat([torch.randperm(777, generator=g) for _ in range(3)]))
    counts, epochs = torch.tensor([777, 777], device="cuda"), torch.tensor([3, 3], device="cuda")
    ours = draw_permutations(torch.tensor(seeds, device="cuda"), counts, epochs, 3 * 777, (777, 3))
    same = torch.equal(ours.cpu().long(), torch.stack(results))
    if not same:
        log.warning("this version of torch shuffles in another way: orders of examples are drawn on the host")
    return same
