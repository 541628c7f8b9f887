"""A running weighted sum of client vectors: what FedAvg averages and FedBuff collects.

Clients are added as they arrive, so the server holds one vector, not one per client.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from offbeat.core.parts.buffer_statistics import Contributions
from offbeat.core.parts.reused_memory import room
from offbeat.core.vector import Layout


@dataclass(slots=True)
class Buffer:
    total: Tensor | None = None  # sum of weight * vector
    weight: float = 0.0
    count: int = 0
    statistics: Contributions = field(default_factory=Contributions)

    def add(self, layout: Layout, vector: Tensor, weight: float, local: Tensor, share: float | None = None) -> None:
        """Add weight * vector; the statistics of `local`, the client's model, count as much, or with `share`."""
        if self.total is None:
            self.total = torch.mul(vector, weight, out=room(vector))
        else:
            self.total.add_(vector, alpha=weight)
        self.weight += weight
        self.count += 1
        self.statistics.add(layout, local, weight if share is None else share)

    def add_delta(self, layout: Layout, base: Tensor, local: Tensor, weight: float) -> None:
        """Add weight * (local - base)."""
        self.add(layout, torch.sub(local, base, out=room(local)), weight, local)

    def merge(self, layout: Layout, other: Buffer) -> None:
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
