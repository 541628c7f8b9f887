"""Merging of buffers and counters, in the same way for every method.

BatchNorm's running statistics are values, not directions. They are averaged with the method's non-negative weights
and mixed into those of the server, but never projected or included in a norm. torch.lerp stays between its end points
even in floating point, so a running mean computed with lerp stays between the smallest and largest contributor.
Counters take the maximum over the contributors and the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from offbeat.core.vector import Layout, new_vector

# use the method's weights, or omega = 1 and equal weights for all contributors (as APPFL)
Statistics = Literal["mix", "replace"]


def mix(layout: Layout, new: Tensor, server: Tensor, local: Tensor, omega: float) -> None:
    """Write the statistics of the unpublished `new`: buffers (1 - omega) server + omega local, counters max."""
    if layout.params_only:
        return
    omega = min(max(omega, 0.0), 1.0)
    for a, b in layout.buffers:
        torch.lerp(server[a:b], local[a:b], omega, out=new[a:b])
    for a, b in layout.counters:
        torch.maximum(server[a:b], local[a:b], out=new[a:b])


def copy_client_statistics(layout: Layout, vector: Tensor, local: Tensor) -> None:
    """Copy the statistics of a client's model into its unpublished delta or gradient."""
    for a, b in (*layout.buffers, *layout.counters):
        vector[a:b] = local[a:b]


@dataclass(slots=True)
class Contributions:
    """The weighted mean of several clients' statistics, collected one by one."""

    mean: Tensor | None = None  # a full vector of which only buffer and counter entries are valid
    weight: float = 0.0

    def add(self, layout: Layout, local: Tensor, weight: float) -> None:
        """Add the statistics of a client's model; weights of 0 or less are ignored."""
        if layout.params_only or weight <= 0:
            return
        self.weight += weight
        if self.mean is None:
            self.mean = new_vector(local).copy_(local)
            return
        for a, b in layout.buffers:
            self.mean[a:b].lerp_(local[a:b], weight / self.weight)
        for a, b in layout.counters:
            torch.maximum(self.mean[a:b], local[a:b], out=self.mean[a:b])

    @staticmethod
    def of(layout: Layout, table: Mapping[int, Tensor], weights: Mapping[int, float]) -> Contributions:
        """Return the weighted mean over a table of clients, without a pass over it if there are no statistics."""
        contributions = Contributions()
        for client in () if layout.params_only else sorted(table):
            contributions.add(layout, table[client], weights[client])
        return contributions

    def write(self, layout: Layout, new: Tensor, server: Tensor, omega: float = 1.0) -> None:
        """Write the statistics of `new`; without contributions they are those of the server."""
        mix(layout, new, server, server if self.mean is None else self.mean, omega)
