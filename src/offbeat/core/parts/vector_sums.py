"""A running weighted sum of client vectors: what FedAvg averages and FedBuff collects.

Clients are added as they arrive, so the server holds one vector, not one per client.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from itertools import repeat

import torch
from torch import Tensor

from offbeat.core.parts.buffer_statistics import Contributions
from offbeat.core.parts.large_vectors import reusable_memory
from offbeat.core.vector import Layout


@dataclass(slots=True)
class WeightedSum:
    total: Tensor | None = None  # sum of weight * vector
    weight: float = 0.0
    count: int = 0
    statistics: Contributions = field(default_factory=Contributions)

    def add(self, layout: Layout, vector: Tensor, weight: float, local: Tensor, share: float | None = None) -> None:
        """Add weight * vector; the statistics of `local`, the client's model, count as much, or with `share`."""
        if self.total is None:
            self.total = torch.mul(vector, weight, out=reusable_memory(vector))
        else:
            self.total.add_(vector, alpha=weight)
        self.weight += weight
        self.count += 1
        self.statistics.add(layout, local, weight if share is None else share)

    def add_delta(self, layout: Layout, base: Tensor, local: Tensor, weight: float) -> None:
        """Add weight * (local - base)."""
        self.add(layout, torch.sub(local, base, out=reusable_memory(local)), weight, local)

    def merge(self, layout: Layout, other: WeightedSum) -> None:
        """Add all that another buffer has gathered; that one is not used any more."""
        if self.total is None:
            self.total = other.total
        elif other.total is not None:
            self.total.add_(other.total)
        self.weight += other.weight
        self.count += other.count
        if other.statistics.mean is not None:
            self.statistics.add(layout, other.statistics.mean, other.statistics.weight)

    def mean(self, layout: Layout, server: Tensor) -> Tensor | None:
        """The mean with the weights given, and with the statistics of the locals; None where nothing was added.

        The sum becomes the mean, in its memory: this buffer is not used any more.
        """
        if self.total is None:
            return None
        model = self.total.div_(self.weight)
        self.statistics.write(layout, model, server)
        return model


@dataclass(slots=True)
class RunningSum:
    total: Tensor | None = None  # None: of nothing
    count: int = 0
    removals: int = 0  # since it was last added up from the vectors themselves
    weights: dict[int, float] = field(default_factory=dict)  # of the clients of a table, where `put` fills it
    weight: float = 0.0  # of all that is in the sum: exact, as long as weights are whole numbers

    def add(self, vector: Tensor, weight: float = 1.0) -> None:
        if self.total is None:
            self.total = torch.mul(vector, weight, out=reusable_memory(vector))
        else:
            self.total.add_(vector, alpha=weight)
        self.count += 1
        self.weight += weight

    def remove(self, vector: Tensor, weight: float = 1.0) -> None:
        assert self.total is not None
        self.count -= 1
        self.removals += 1
        self.weight -= weight
        if self.count == 0:
            self.total, self.removals, self.weight = None, 0, 0.0
        else:
            self.total.sub_(vector, alpha=weight)

    def put(self, table: MutableMapping[int, Tensor], client: int, vector: Tensor, weight: float = 1.0) -> None:
        """table[client] := vector, where this is the weighted sum of the whole table: two passes, whatever its size."""
        if client in table:
            self.remove(table[client], self.weights[client])
        table[client] = vector
        self.weights[client] = weight
        self.add(table[client], weight)  # as it is kept: a store may round
        self._renew_from(table)

    def drop(self, table: MutableMapping[int, Tensor], client: int) -> None:
        """Take a client out of the table whose sum this is; one that is not there is nothing."""
        if client in table:
            self.remove(table.pop(client), self.weights.pop(client, 1.0))
            self._renew_from(table)

    def _renew_from(self, table: MutableMapping[int, Tensor]) -> None:
        if self.needs_renewal:
            order = sorted(table)  # a store need not keep one
            self.renew((table[other] for other in order), (self.weights.get(other, 1.0) for other in order))

    @property
    def needs_renewal(self) -> bool:
        """Is it time to add up anew?"""
        return self.removals > self.count

    def renew(self, vectors: Iterable[Tensor], weights: Iterable[float] = repeat(1.0)) -> None:
        self.total, self.count, self.removals, self.weight = None, 0, 0, 0.0
        for vector, weight in zip(vectors, weights, strict=False):
            self.add(vector, weight)
