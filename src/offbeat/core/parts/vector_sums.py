"""Sums of client vectors that are updated as clients report, so the server needs no vector per client.

`WeightedSum` collects the updates of a round or buffer together with their statistics. `RunningSum` also allows to
remove vectors: it is the sum of a table with one vector per client, or of a queue.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from itertools import repeat

import torch
from torch import Tensor

from offbeat.core.parts.buffer_statistics import Contributions
from offbeat.core.protocol import UpdateArrived
from offbeat.core.vector import Layout, reusable_memory


@dataclass(slots=True)
class WeightedSum:
    """A weighted sum of client vectors, and the weighted mean of their statistics."""

    total: Tensor | None = None  # sum of weight * vector
    weight: float = 0.0
    count: int = 0
    statistics: Contributions = field(default_factory=Contributions)

    def add(self, layout: Layout, vector: Tensor, weight: float, local: Tensor, share: float | None = None) -> None:
        """Add weight * vector, and the statistics of the model `local` with the weight `share` (default: weight)."""
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

    def add_model(self, layout: Layout, update: UpdateArrived) -> None:
        """Add the local model of an update, weighted by its number of examples."""
        self.add(layout, update.local, float(update.num_examples), update.local)

    def merge(self, layout: Layout, other: WeightedSum) -> None:
        """Add the contents of another sum, which must not be used afterwards."""
        if self.total is None:
            self.total = other.total
        elif other.total is not None:
            self.total.add_(other.total)
        self.weight += other.weight
        self.count += other.count
        if other.statistics.mean is not None:
            self.statistics.add(layout, other.statistics.mean, other.statistics.weight)

    def mean(self, layout: Layout, server: Tensor) -> Tensor | None:
        """Return the weighted mean with the merged statistics, or None if nothing was added.

        The mean is computed in the memory of the sum, which must not be used afterwards.
        """
        if self.total is None:
            return None
        model = self.total.div_(self.weight)
        self.statistics.write(layout, model, server)
        return model


@dataclass(slots=True)
class RunningSum:
    """A weighted sum of vectors that are added and removed.

    Each removal leaves a rounding error. After more removals than vectors are left, the sum is computed anew from the
    vectors (`renew`). This costs about one more pass per update, and errors do not grow with the length of the run.
    The sum of no vectors is None, never a small remainder that would have a direction.
    """

    total: Tensor | None = None
    count: int = 0
    removals: int = 0  # since the sum was last computed from the vectors
    weights: dict[int, float] = field(default_factory=dict)  # client -> weight, in a table filled with `put`
    weight: float = 0.0  # sum of the weights; exact for integer weights

    def add(self, vector: Tensor, weight: float = 1.0) -> None:
        """Add weight * vector."""
        if self.total is None:
            self.total = torch.mul(vector, weight, out=reusable_memory(vector))
        else:
            self.total.add_(vector, alpha=weight)
        self.count += 1
        self.weight += weight

    def remove(self, vector: Tensor, weight: float = 1.0) -> None:
        """Subtract weight * vector, which was added before."""
        assert self.total is not None
        self.count -= 1
        self.removals += 1
        self.weight -= weight
        if self.count == 0:
            self.total, self.removals, self.weight = None, 0, 0.0
        else:
            self.total.sub_(vector, alpha=weight)

    def put(self, table: MutableMapping[int, Tensor], client: int, vector: Tensor, weight: float = 1.0) -> None:
        """Set table[client] and update this sum of the table, in two passes whatever the size of the table."""
        if client in table:
            self.remove(table[client], self.weights[client])
        table[client] = vector
        self.weights[client] = weight
        self.add(table[client], weight)  # read back, because a store may round
        self._renew_from(table)

    def drop(self, table: MutableMapping[int, Tensor], client: int) -> None:
        """Remove a client, if present, from the table and from this sum of the table."""
        if client in table:
            self.remove(table.pop(client), self.weights.pop(client, 1.0))
            self._renew_from(table)

    def _renew_from(self, table: MutableMapping[int, Tensor]) -> None:
        """Compute the sum anew from the table, if it needs that."""
        if self.needs_renewal:
            order = sorted(table)  # a store may have no fixed order
            self.renew((table[other] for other in order), (self.weights.get(other, 1.0) for other in order))

    @property
    def needs_renewal(self) -> bool:
        """True if the sum should be computed anew with `renew`."""
        return self.removals > self.count

    def renew(self, vectors: Iterable[Tensor], weights: Iterable[float] = repeat(1.0)) -> None:
        """Compute the sum anew from the vectors."""
        self.total, self.count, self.removals, self.weight = None, 0, 0, 0.0
        for vector, weight in zip(vectors, weights, strict=False):
            self.add(vector, weight)
