"""The examples of a stack, step by step: those of all clients in one pass, batches of one size together.

Where the kernel can leave out what fills them up, batches of about one size are put together too: up to twice as large
as the smallest, so that a client with few examples does not cost as much as one with many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from offbeat.training.client_data import ClientData, Pair
from offbeat.training.plan import Plan

GATHERED = 2**20  # values of examples that are copied at a time, or one step's: an epoch of a few clients

Batch = tuple[Tensor, int, Tensor | None]  # where its examples lie, how many there are, and how each is shown


class Group(NamedTuple):
    """Batches of some clients of a stack, one below the other."""

    rows: Tensor | None  # of these clients; None: of all
    x: Tensor  # (clients, examples, …)
    y: Tensor
    sizes: Tensor | None  # how many examples of each client count; None: all of them


class Room:
    """Memory for examples, used again for the next ones and by the next stack: a core has it near, and nobody asks the
    system for new pages all the time.
    """

    def __init__(self) -> None:
        self._held: Pair | None = None

    def gathered(self, data: ClientData, clients: Sequence[int], places: Sequence[Tensor]) -> Pair:
        count = sum(p.shape[0] for p in places)
        if self._held is None or self._held[0].shape[0] < count:
            self._held = data.gather(clients, places)
            return self._held
        x, y = self._held
        return data.gather(clients, places, (x[:count], y[:count]))


def steps(data: ClientData, plans: Sequence[Plan], phase: int, pads: bool, rooms: list[Room]) -> Iterator[list[Group]]:
    """As many as the longest of the plans has; who is done is in none of the groups. The examples of a step lie in
    these rooms, to which more are added where it takes them, until the next step is asked for.
    """
    counts = [plan.counts[phase] for plan in plans]
    if len({(plan.job.num_examples, *plan.counts, plan.augment) for plan in plans}) == 1:
        yield from _in_step(data, plans, phase, _enough(rooms, 1)[0])
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
            _gathered(data, plans, rows, [chosen[i] for i in rows], room)
            for rows, room in zip(by_size.values(), _enough(rooms, len(by_size)), strict=False)
        ]


def _enough(rooms: list[Room], count: int) -> list[Room]:
    rooms += [Room() for _ in range(count - len(rooms))]
    return rooms


def _in_step(data: ClientData, plans: Sequence[Plan], phase: int, room: Room) -> Iterator[list[Group]]:
    """The same, where all clients have as many examples and take as many steps: the common case, at less cost."""
    clients, augment, count = [plan.job.client for plan in plans], plans[0].augment, len(plans)
    for epochs in zip(*(plan.epochs(phase) for plan in plans), strict=True):
        places = [data.places(c, positions) for c, (positions, _, _) in zip(clients, epochs, strict=True)]
        moves = None if augment is None else torch.stack([shown for _, _, shown in epochs if shown is not None])
        start = 0
        for sizes in _at_once(epochs[0][1], GATHERED // (count * data.width)):
            stop = start + sum(sizes)
            x, y = room.gathered(data, clients, [own[start:stop] for own in places])
            x, y = x.view(count, stop - start, *x.shape[1:]), y.view(count, stop - start, *y.shape[1:])
            for x_, y_ in zip(*(torch.split_with_sizes(part, sizes, 1) for part in (x, y)), strict=True):
                if augment is not None and moves is not None:
                    shown = moves[:, start : start + x_.shape[1]].flatten(0, 1)
                    x_ = augment(x_.flatten(0, 1), shown).view(x_.shape)
                yield [Group(None, x_, y_, None)]
                start += x_.shape[1]


def _at_once(sizes: list[int], most: int) -> Iterator[list[int]]:
    """Batches of an epoch, as many at a time as have no more examples than that, one at least."""
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
