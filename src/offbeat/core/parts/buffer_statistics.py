"""Buffers and counters, merged in one way by every method.

BatchNorm's running statistics are values, not directions: they are averaged with the method's own non-negative
weights and mixed into the server's, never projected, never in a norm. torch.lerp stays between its end points even
in floating point, so a running mean made of lerps never leaves the hull of its contributors. Counters take the
maximum over the contributors and the server's own value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from offbeat.core.parts.large_vectors import new_vector
from offbeat.core.vector import Layout

# with the method's weight, or with omega = 1 and all contributors alike (what APPFL does)
Statistics = Literal["mix", "replace"]


def mix(layout: Layout, new: Tensor, server: Tensor, local: Tensor, omega: float) -> None:
    """Write the statistics of `new` (not published yet): buffers (1 - omega) server + omega local, counters max."""
    if layout.params_only:
        return
    omega = min(max(omega, 0.0), 1.0)
    for a, b in layout.buffers:
        torch.lerp(server[a:b], local[a:b], omega, out=new[a:b])
    for a, b in layout.counters:
        torch.maximum(server[a:b], local[a:b], out=new[a:b])


def copy_client_statistics(layout: Layout, vector: Tensor, local: Tensor) -> None:
    """Write a client's own statistics, as values, into the vector of its direction (not published yet)."""
    for a, b in (*layout.buffers, *layout.counters):
        vector[a:b] = local[a:b]


@dataclass(slots=True)
class Contributions:
    """The weighted mean of several clients' statistics, gathered one by one."""

    mean: Tensor | None = None  # whole-vector sized; only buffer and counter entries mean anything
    weight: float = 0.0

    def add(self, layout: Layout, local: Tensor, weight: float) -> None:
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
        """The weighted mean over a table of clients; no pass over it where there are no statistics."""
        found = Contributions()
        for client in () if layout.params_only else sorted(table):
            found.add(layout, table[client], weights[client])
        return found

    def write(self, layout: Layout, new: Tensor, server: Tensor, omega: float = 1.0) -> None:
        """Write the statistics of `new`; without a contribution they stay the server's."""
        mix(layout, new, server, server if self.mean is None else self.mean, omega)
