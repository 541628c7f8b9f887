"""The batches of a stack of jobs: the rows of the examples that each job uses at each step.

On a device the orders of examples are computed there, otherwise on the host, with the same integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.core.draws import batch_keys, example_orders, example_orders_on_device
from offbeat.core.jobs import Job
from offbeat.training.client_data import ExampleIndex
from offbeat.training.descent import batches_per_epoch, job_key


class BatchRows(NamedTuple):
    """The rows of the examples of some steps of a stack, (steps, jobs, width)."""

    rows: Tensor
    sizes: Tensor  # (steps, jobs): the number of rows that count; the others repeat the first row of the batch
    epochs: Tensor  # (steps, jobs): epochs of the phase before the step
    positions: Tensor  # (steps, jobs, width): positions in the order of the epoch


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """The order of the examples of a stack of jobs in one phase.

    All batches have the same size, except the last of an epoch.
    """

    order: Tensor  # (jobs, longest): positions among the examples of each job, epoch after epoch
    examples: Tensor  # (jobs,)
    steps: Tensor  # (jobs,)
    starts: Tensor  # (jobs,): first position of each job's examples in `rows`, or its first row if `rows` is None
    rows: Tensor | None
    each: Tensor  # (jobs,): steps of an epoch
    batch: int
    most: int  # steps of the longest job

    def batch_rows(self, first: int, steps: int, width: int) -> BatchRows:
        """Return the rows of each job's batches; finished jobs have no rows that count."""
        device, n = self.order.device, self.examples
        step = torch.arange(first, first + steps, device=device)[:, None]
        epoch = torch.div(step, self.each, rounding_mode="floor")
        step_of_epoch = step - epoch * self.each
        passed = step_of_epoch * self.batch
        sizes = torch.where(step_of_epoch == self.each - 1, n - passed, self.batch)
        sizes = torch.where(step < self.steps, sizes, 0)
        slot = torch.arange(width, device=device)
        epoch, passed = (torch.where(sizes > 0, value, 0) for value in (epoch, passed))
        position = passed[:, :, None] + torch.where(slot < sizes[:, :, None], slot, 0)
        starts = (torch.arange(len(n), device=device) * self.order.shape[1] + epoch * n)[:, :, None]
        chosen = self.order.reshape(-1).index_select(0, (position + starts).view(-1)).view(position.shape)
        chosen = chosen + self.starts[:, None]
        if self.rows is not None:
            chosen = self.rows.index_select(0, chosen.view(-1)).view(position.shape)
        return BatchRows(chosen, sizes, epoch, position)


def concatenate_indexes(indexes: Sequence[ExampleIndex]) -> list[ExampleIndex]:
    """Put the rows of several runs into one table, so their jobs can be looked up together."""
    results, parts, end = [], [], 0
    for index in indexes:
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
    """Return a client's first position in a table that other runs precede."""
    return start(client) + by


def draw_batch_order(
    jobs: Sequence[Job],
    steps: Sequence[int],
    indexes: Sequence[ExampleIndex],
    batch: int,
    merge: bool,
    first_epochs: Sequence[int] | None = None,
    stack_rows: int | None = None,
) -> BatchOrder:
    """Draw the order for jobs with these numbers of steps; surplus rows of the stack take no steps.

    `first_epochs` are the numbers of epochs that earlier phases used.
    """
    device, stack_rows = indexes[0].pair[0].device, stack_rows or len(jobs)
    starts, rows = _index_positions(jobs, indexes, device)
    table = np.ones((7, stack_rows), dtype=np.int64)
    table[1:4, len(jobs) :] = 0
    counts, taken, begins, epochs, each, keys, firsts = table[:, : len(jobs)]
    counts[:], taken[:], begins[:] = [job.num_examples for job in jobs], steps, starts
    firsts[:] = 0 if first_epochs is None else first_epochs
    different, which = np.unique(counts, return_inverse=True)
    each[:] = np.array([batches_per_epoch(count, batch, merge) for count in different.tolist()])[which]
    epochs[:] = -(-taken // each)
    keys[:] = batch_keys(map(job_key, jobs)).view(np.int64)
    on_device = copy_to_device(table, device)
    if device.type == "cpu":
        every = (row.tolist() for row in (counts, epochs, firsts))
        order = torch.zeros((stack_rows, int((counts * epochs).max())), dtype=torch.int32)
        order[: len(jobs)] = example_orders(keys.view(np.uint64), *every)
    else:
        largest = int(counts.max()), int(epochs.max()), int((counts * epochs).max())
        order = example_orders_on_device(on_device[5], on_device[0], on_device[3], on_device[6], *largest)
    return BatchOrder(
        order, on_device[0], on_device[1], on_device[2], rows, on_device[4], batch, int(taken.max(initial=0))
    )


def copy_to_device(numbers: NDArray[np.int64], device: torch.device) -> Tensor:
    """Copy to a device from pinned memory, without waiting."""
    host = torch.from_numpy(numbers)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def _index_positions(
    jobs: Sequence[Job], indexes: Sequence[ExampleIndex], device: torch.device
) -> tuple[list[int], Tensor | None]:
    """Return where the examples of each job start, and the table of rows."""
    first = indexes[0]
    distinct = {id(index): index for index in indexes}.values()
    if all(index.start_of is not None and index.rows is first.rows for index in distinct):
        starts = [index.start_of(job.client) for index, job in zip(indexes, jobs, strict=True) if index.start_of]
        return starts, first.rows
    client_rows = [index.rows_of(job.client)[: job.num_examples] for index, job in zip(indexes, jobs, strict=True)]
    starts = np.cumsum([0, *map(len, client_rows[:-1])]).tolist()
    return starts, torch.cat(client_rows).to(device)
