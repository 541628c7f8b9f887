"""The examples of a stack, step by step: those of all clients in one pass, batches of one size together.

Where the kernel can leave out what fills them up, batches of about one size are put together too: up to twice as large
as the smallest, so that a client with few examples does not cost as much as one with many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from offbeat.client.data import ClientData, Pair
from offbeat.client.plan import Plan

Batch = tuple[Tensor, int, Tensor | None]  # where its examples lie, how many there are, and how each is shown


class Group(NamedTuple):
    """Batches of some clients of a stack, one below the other."""

    rows: Tensor | None  # of these clients; None: of all
    x: Tensor  # (clients, examples, …)
    y: Tensor
    sizes: Tensor | None  # how many examples of each client count; None: all of them


class Room:
    """Memory for the examples of a step, used again for the next: a core has it near, and nobody asks the system for
    new pages all the time.
    """

    def __init__(self) -> None:
        self._held: Pair | None = None

    def gathered(self, data: ClientData, clients: Sequence[int], places: Sequence[Tensor]) -> Pair:
        fits = self._held is not None and len(self._held[0]) == sum(len(p) for p in places)
        self._held = data.gather(clients, places, self._held if fits else None)
        return self._held


def steps(data: ClientData, plans: Sequence[Plan], phase: int, pads: bool) -> Iterator[list[Group]]:
    """As many as the longest of the plans has; who is done is in none of the groups. The examples of a step are good
    until the next is asked for.
    """
    counts = [plan.counts[phase] for plan in plans]
    if data.shared_rows and len({(plan.job.num_examples, *plan.counts, plan.augment) for plan in plans}) == 1:
        yield from _in_step(data, plans, phase)
        return
    batches = [_batches(data, plan, phase) for plan in plans]
    spare: list[Room] = []
    for step in range(max(counts)):
        by_size: dict[int, list[int]] = {}
        chosen: dict[int, Batch] = {}
        for i, count in enumerate(counts):
            if count > step:
                chosen[i] = batch = next(batches[i])
                by_size.setdefault((batch[1] - 1).bit_length() if pads else batch[1], []).append(i)
        spare += [Room() for _ in range(len(by_size) - len(spare))]
        yield [
            _gathered(data, plans, rows, [chosen[i] for i in rows], room)
            for rows, room in zip(by_size.values(), spare, strict=False)
        ]


def _in_step(data: ClientData, plans: Sequence[Plan], phase: int) -> Iterator[list[Group]]:
    """The same, where all clients have as many examples and take as many steps: the common case, at less cost."""
    clients, augment, room = [plan.job.client for plan in plans], plans[0].augment, Room()
    for epochs in zip(*(plan.epochs(phase) for plan in plans), strict=True):
        sizes = epochs[0][1]
        places = torch.stack([data.places(c, positions) for c, (positions, _, _) in zip(clients, epochs, strict=True)])
        moves = None if augment is None else torch.stack([shown for _, _, shown in epochs if shown is not None])
        start = 0
        for size in sizes:
            x, y = room.gathered(data, clients, (places[:, start : start + size].flatten(),))
            if augment is not None and moves is not None:
                x = augment(x, moves[:, start : start + size].flatten(0, 1))
            yield [Group(None, x.view(len(plans), size, *x.shape[1:]), y.view(len(plans), size, *y.shape[1:]), None)]
            start += size


def _batches(data: ClientData, plan: Plan, phase: int) -> Iterator[Batch]:
    for positions, sizes, moves in plan.epochs(phase):
        shown = (None,) * len(sizes) if moves is None else torch.split_with_sizes(moves, sizes)
        places = torch.split_with_sizes(data.places(plan.job.client, positions), sizes)
        yield from zip(places, sizes, shown, strict=True)


def _gathered(data: ClientData, plans: Sequence[Plan], rows: list[int], batches: list[Batch], room: Room) -> Group:
    own = [size for _, size, _ in batches]
    size, sizes = max(own), None
    if min(own) < size:  # filled up with examples of the same batch: they can spoil nothing that is sound
        batches, sizes = [_filled(batch, size) for batch in batches], torch.tensor(own)
    x, y = room.gathered(data, [plans[i].job.client for i in rows], [places for places, _, _ in batches])
    augment, moves = plans[rows[0]].augment, [shown for _, _, shown in batches if shown is not None]
    if augment is not None and moves:
        x = augment(x, torch.cat(moves))
    device, count = x.device, len(rows)
    return Group(
        None if count == len(plans) else torch.tensor(rows, device=device),
        x.view(count, size, *x.shape[1:]),
        y.view(count, size, *y.shape[1:]),
        None if sizes is None else sizes.to(device),
    )


def _filled(batch: Batch, to: int) -> Batch:
    places, size, shown = batch
    again = None if shown is None else torch.cat([shown, shown[:1].expand(to - size, *shown.shape[1:])])
    return torch.cat([places, places[:1].expand(to - size)]), to, again
