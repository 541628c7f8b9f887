"""Gather the examples of a stack step by step, for all clients at once, and group batches of equal size.

If the kernel ignores padding, batches of similar size are grouped too, up to twice the smallest, so a client with few
examples does not cost as much as one with many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from offbeat.training.client_data import ClientData, Pair
from offbeat.training.descent import Plan

MAX_GATHERED_VALUES = 2**20  # values of examples that are copied at a time, or one step's: an epoch of a few clients

Batch = tuple[Tensor, int, Tensor | None]  # where its examples lie, how many there are, and how each is shown


class BatchGroup(NamedTuple):
    """The batches of some clients of a stack, one below the other."""

    rows: Tensor | None  # of these clients; None: of all
    x: Tensor  # (clients, examples, …)
    y: Tensor
    sizes: Tensor | None  # how many examples of each client count; None: all of them


class ReusableBuffer:
    """Memory for examples that is reused for later batches and stacks, which avoids allocations and stays in cache."""

    def __init__(self) -> None:
        self._buffers: Pair | None = None

    def gather(self, data: ClientData, clients: Sequence[int], places: Sequence[Tensor]) -> Pair:
        count = sum(p.shape[0] for p in places)
        if self._buffers is None or self._buffers[0].shape[0] < count:
            self._buffers = data.gather(clients, places)
            return self._buffers
        x, y = self._buffers
        return data.gather(clients, places, (x[:count], y[:count]))


def stack_steps(
    data: ClientData, plans: Sequence[Plan], phase: int, pads: bool, buffers: list[ReusableBuffer]
) -> Iterator[list[BatchGroup]]:
    """Yield the batch groups of each step, up to the last step of the longest plan, without finished clients.

    The examples are in these buffers, to which more are added if needed, until the next step is requested.
    """
    counts = [plan.phase_steps[phase] for plan in plans]
    if len({(plan.job.num_examples, *plan.phase_steps, plan.augment) for plan in plans}) == 1:
        yield from _buffer_steps(data, plans, phase, _extend_buffers(buffers, 1)[0])
        return
    batches = [_batches(data, plan, phase) for plan in plans]
    for step in range(max(counts)):
        by_size: dict[int, list[int]] = {}
        chosen: dict[int, Batch] = {}
        for i, count in enumerate(counts):
            if count > step:
                chosen[i] = batch = next(batches[i])
                by_size.setdefault((batch[1] - 1).bit_length() if pads else batch[1], []).append(i)
        yield [
            _gather_group(data, plans, rows, [chosen[i] for i in rows], buffer)
            for rows, buffer in zip(by_size.values(), _extend_buffers(buffers, len(by_size)), strict=False)
        ]


def _extend_buffers(buffers: list[ReusableBuffer], count: int) -> list[ReusableBuffer]:
    buffers += [ReusableBuffer() for _ in range(count - len(buffers))]
    return buffers


def _buffer_steps(
    data: ClientData, plans: Sequence[Plan], phase: int, buffer: ReusableBuffer
) -> Iterator[list[BatchGroup]]:
    """Yield the steps if all clients have equally many examples and steps, the common case, at lower cost."""
    clients, augment, count = [plan.job.client for plan in plans], plans[0].augment, len(plans)
    for epochs in zip(*(plan.epochs(phase) for plan in plans), strict=True):
        places = [data.storage_rows(c, positions) for c, (positions, _, _) in zip(clients, epochs, strict=True)]
        moves = None if augment is None else torch.stack([shown for _, _, shown in epochs if shown is not None])
        start = 0
        for sizes in _epochs_per_copy(epochs[0][1], MAX_GATHERED_VALUES // (count * data.input_size)):
            stop = start + sum(sizes)
            x, y = buffer.gather(data, clients, [rows[start:stop] for rows in places])
            x, y = x.view(count, stop - start, *x.shape[1:]), y.view(count, stop - start, *y.shape[1:])
            for x_, y_ in zip(*(torch.split_with_sizes(part, sizes, 1) for part in (x, y)), strict=True):
                if augment is not None and moves is not None:
                    shown = moves[:, start : start + x_.shape[1]].flatten(0, 1)
                    x_ = augment(x_.flatten(0, 1), shown).view(x_.shape)
                yield [BatchGroup(None, x_, y_, None)]
                start += x_.shape[1]


def _epochs_per_copy(sizes: list[int], most: int) -> Iterator[list[int]]:
    """Split the batches of an epoch into parts with at most this many examples, at least one batch each."""
    some: list[int] = []
    for size in sizes:
        if some and sum(some) + size > most:
            yield some
            some = []
        some.append(size)
    yield some


def _batches(data: ClientData, plan: Plan, phase: int) -> Iterator[Batch]:
    for positions, sizes, moves in plan.epochs(phase):
        shown = (None,) * len(sizes) if moves is None else torch.split_with_sizes(moves, sizes)
        places = torch.split_with_sizes(data.storage_rows(plan.job.client, positions), sizes)
        yield from zip(places, sizes, shown, strict=True)


def _gather_group(
    data: ClientData, plans: Sequence[Plan], rows: list[int], batches: list[Batch], buffer: ReusableBuffer
) -> BatchGroup:
    batch_sizes = [size for _, size, _ in batches]
    size, sizes = max(batch_sizes), None
    if min(batch_sizes) < size:  # filled up with examples of the same batch: they can spoil nothing that is sound
        batches, sizes = [_pad_batch(batch, size) for batch in batches], torch.tensor(batch_sizes)
    x, y = buffer.gather(data, [plans[i].job.client for i in rows], [places for places, _, _ in batches])
    augment, moves = plans[rows[0]].augment, [shown for _, _, shown in batches if shown is not None]
    if augment is not None and moves:
        x = augment(x, torch.cat(moves))
    device, count = x.device, len(rows)
    return BatchGroup(
        None if count == len(plans) else torch.tensor(rows, device=device),
        x.view(count, size, *x.shape[1:]),
        y.view(count, size, *y.shape[1:]),
        None if sizes is None else sizes.to(device),
    )


def _pad_batch(batch: Batch, to: int) -> Batch:
    places, size, shown = batch
    again = None if shown is None else torch.cat([shown, shown[:1].expand(to - size, *shown.shape[1:])])
    return torch.cat([places, places[:1].expand(to - size)]), to, again
