"""Streams of data: a client starts with a share of its examples and receives the rest during the run.

The amount of a client's data is a pure function of (seed, client, number of its jobs, time): nothing is stored. Local
work uses the examples that arrived first, so a stream also defines the order in which they arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from offbeat.core import draws
from offbeat.core.errors import DataError, require
from offbeat.core.settings import UpToOne
from offbeat.scenario.client_groups import Range, draw_between, store_range
from offbeat.scenario.scenario_settings import Count, ScenarioSettings

Per = Literal["round", "second"]


class Stream(Protocol):
    """A stream has the number and the order of a client's arrived examples."""

    def arrived(self, seed: int, client: int, total: int, index: int, now: float) -> int:
        """Return how many of the client's `total` examples have arrived before its n-th job; it never decreases."""
        ...

    def order(self, seed: int, client: int, rows: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the client's examples, which have these labels, in the order in which they arrive."""
        ...


@dataclass(frozen=True, kw_only=True)
class Static:
    """All data is there from the start."""

    def arrived(self, seed: int, client: int, total: int, index: int, now: float) -> int:
        """Return how many of the client's `total` examples have arrived before its n-th job; it never decreases."""
        return total

    def order(self, seed: int, client: int, rows: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the client's examples, which have these labels, in the order in which they arrive."""
        return rows  # the order does not matter if all are used


@dataclass(frozen=True, kw_only=True)
class Growing(ScenarioSettings):
    """Each client starts with a share of its data (`start`) and gains more (`rate`) with each round or virtual second.

    If two numbers are given, low and high, each client draws its own between them, because devices sample at different
    rates. A round is a job of the client. So with per="round" the data of fast clients grows faster, and the amount
    depends on the method; to compare methods on the same stream use per="second". Examples arrive in random order, so
    the arrived ones are a fair sample of the client's data.
    """

    start: float | Range = (0.1, 0.9)  # shares of the client's data
    rate: float | Range = (0.0005, 0.001)  # of the client's data; ASO-Fed's 0.05 to 0.1 % an iteration
    per: Per = "round"  # what the rate counts
    min_examples: Count = 1  # or all if a client has fewer; batch statistics need 2

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        _, high = store_range(self, "start", "a share of the client's data")
        store_range(self, "rate", "a share of the client's data")
        require(high <= 1, f"{type(self).__name__}: start = {self.start}: must be at most 1, all data")

    def arrived(self, seed: int, client: int, total: int, index: int, now: float) -> int:
        """Return how many of the client's `total` examples have arrived before its n-th job; it never decreases."""
        start = draw_between(self.start, seed, "arrival start", client)
        rate = draw_between(self.rate, seed, "arrival rate", client)
        share = min(start + rate * (index if self.per == "round" else now), 1.0)
        return min(total, max(self.min_examples, int(share * total + 1e-9)))  # 0.29 * 100 is 28.999..., not 28

    def order(self, seed: int, client: int, rows: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the client's examples, which have these labels, in the order in which they arrive."""
        return rows[torch.randperm(len(rows), generator=draws.generator(seed, "arrival order", client))]


@dataclass(frozen=True, kw_only=True)
class Drifting(Growing):
    """Data that grows while its mix of classes changes: early examples are mostly of some classes, late ones of others.

    Each example arrives at (1 - strength) times a random moment plus strength times a random moment within the span of
    its class. Classes follow each other in an order that is drawn once for all clients, or for each client. Strength 0
    gives growing data, strength 1 one class after the other.
    """

    strength: UpToOne = 0.7
    shared: bool = True  # whether the order of the classes is the same for all clients

    def order(self, seed: int, client: int, rows: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the client's examples, which have these labels, in the order in which they arrive."""
        if labels is None or labels.dim() != 1 or labels.is_floating_point():
            raise DataError("drifting and class-incremental data need one class label for each example")
        moments = torch.rand(len(rows), generator=draws.generator(seed, "arrival order", client), dtype=torch.float64)
        position = _class_positions(labels, seed, None if self.shared else client)
        # each class has a span of [0, 1) whose length is its share of the examples
        sizes = torch.bincount(position).to(torch.float64) / len(position)
        begins = sizes.cumsum(0) - sizes
        in_span = begins[position] + sizes[position] * moments
        return rows[((1 - self.strength) * moments + self.strength * in_span).argsort(stable=True)]


@dataclass(frozen=True, kw_only=True)
class ClassIncremental(Drifting):
    """Data that grows class by class: a new class begins once all examples of the one before have arrived."""

    strength: UpToOne = 1.0  # 1: no overlap of classes in time; 0: classes arrive at random


STREAMS: dict[str, type[Stream]] = {
    "static": Static,
    "growing": Growing,
    "drifting": Drifting,
    "class_incremental": ClassIncremental,
}


def _class_positions(labels: Tensor, seed: int, client: int | None) -> Tensor:
    """Return the position of each example's class in the order of classes."""
    counters = () if client is None else (client,)
    classes = sorted(set(labels.tolist()))
    ranked = sorted(classes, key=lambda label: draws.bits(seed, "class order", *counters, label))
    position = torch.zeros(max(classes) + 1, dtype=torch.int64)
    position[torch.tensor(ranked)] = torch.arange(len(ranked))
    return position[labels]
