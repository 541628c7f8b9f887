"""A running sum of client vectors that come and go: what a method with a table of gradients keeps beside the table.

Taking a vector out leaves its rounding behind. So the sum is added up anew from the table once more vectors were taken
out than are left: about one more pass an update, and the rounding does not grow with the length of the run. A sum whose
last vector was taken out is exactly nothing, never a small rest that would have a direction.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from itertools import repeat

import torch
from torch import Tensor

from offbeat.core.parts.reused_memory import room


@dataclass(slots=True)
class RunningSum:
    total: Tensor | None = None  # None: of nothing
    count: int = 0
    removals: int = 0  # since it was last added up from the vectors themselves
    weights: dict[int, float] = field(default_factory=dict)  # of the clients of a table, where `put` fills it
    weight: float = 0.0  # of all that is in the sum: exact, as long as weights are whole numbers

    def add(self, vector: Tensor, weight: float = 1.0) -> None:
        if self.total is None:
            self.total = torch.mul(vector, weight, out=room(vector))
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
