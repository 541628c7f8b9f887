"""A running sum of client vectors that come and go: what a method with a table of gradients keeps beside the table.

Taking a vector out leaves its rounding behind. So the sum is added up anew from the table once more vectors were taken
out than are left: about one more pass an update, and the rounding does not grow with the length of the run. A sum whose
last vector was taken out is exactly nothing, never a small rest that would have a direction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class RunningSum:
    total: Tensor | None = None  # None: of nothing
    count: int = 0
    removals: int = 0  # since it was last added up from the vectors themselves

    def add(self, vector: Tensor) -> None:
        self.total = vector.clone() if self.total is None else self.total.add_(vector)
        self.count += 1

    def remove(self, vector: Tensor) -> None:
        assert self.total is not None
        self.count -= 1
        self.removals += 1
        if self.count == 0:
            self.total, self.removals = None, 0
        else:
            self.total.sub_(vector)

    @property
    def worn(self) -> bool:
        """Is it time to add up anew?"""
        return self.removals > self.count

    def renew(self, vectors: Iterable[Tensor]) -> None:
        self.total, self.count, self.removals = None, 0, 0
        for vector in vectors:
            self.add(vector)
