"""Data that arrives over time: a client starts with a share of its examples and gets the rest while the run goes on.

How much a client has is a pure function of (seed, client, how many jobs it had, time): nothing is stored. By the
second, all methods of one seed meet the same data at the same time; by the round, a method that asks a client more
often gets to see more of it. Local work sees the first so many of a client's examples, so a stream also says in which
order they arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from offbeat.core import draws
from offbeat.core.errors import DataError, require
from offbeat.scenario.client_groups import Range, as_range, draw_between

Per = Literal["round", "second"]


class Stream(Protocol):
    def arrived(self, seed: int, client: int, total: int, index: int, now: float) -> int:
        """How many of the client's `total` examples are there at `now`, before its n-th job; never fewer later."""
        ...

    def order(self, seed: int, client: int, rows: Tensor, labels: Tensor | None = None) -> Tensor:
        """The client's examples, with these labels, in the order in which they arrive."""
        ...


@dataclass(frozen=True, kw_only=True)
class Static:
    """All data is there from the start."""

    def arrived(self, seed: int, client: int, total: int, index: int, now: float) -> int:
        return total

    def order(self, seed: int, client: int, rows: Tensor, labels: Tensor | None = None) -> Tensor:
        return rows  # whoever trains on everything does not care


@dataclass(frozen=True, kw_only=True)
class Growing:
    """Each client starts with a share of its data (`start`) and gains more (`rate`) with each round or virtual second.

    Where two numbers are given, low and high, each client draws its own between them: devices sample at different
    rates. A round is a job of the client's own, so with per="round" the data of fast clients grows faster, and a
    client's depends on the method: to compare methods on one stream take per="second". Examples arrive in random order,
    so that what is there is a fair sample of the client's data, however the data set is sorted.
    """

    start: float | Range = (0.1, 0.9)  # shares of the client's data
    rate: float | Range = (0.0005, 0.001)  # of the client's data; ASO-Fed's 0.05 to 0.1 % an iteration
    per: Per = "round"  # what the rate counts
    min_examples: int = 1  # or all, where a client has fewer; batch statistics need 2

    def __post_init__(self) -> None:
        start = as_range("growing start", self.start, "a share of the client's data")
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "rate", as_range("growing rate", self.rate, "a share of the client's data"))
        require(start[1] <= 1, f"growing start = {self.start}: nobody starts with more than all, 1")
        require(self.per in get_args(Per), f"growing per = {self.per!r}: 'round' or 'second'")
        require(self.min_examples >= 1, f"growing min_examples = {self.min_examples}: must be at least 1")

    def arrived(self, seed: int, client: int, total: int, index: int, now: float) -> int:
        start = draw_between(self.start, seed, "arrival start", client)
        rate = draw_between(self.rate, seed, "arrival rate", client)
        share = min(start + rate * (index if self.per == "round" else now), 1.0)
        return min(total, max(self.min_examples, int(share * total + 1e-9)))  # 0.29 * 100 is 28.999...: nobody means 28

    def order(self, seed: int, client: int, rows: Tensor, labels: Tensor | None = None) -> Tensor:
        return rows[torch.randperm(len(rows), generator=draws.generator(seed, "arrival order", client))]


@dataclass(frozen=True, kw_only=True)
class Drifting(Growing):
    """Data that grows while its mix of classes changes: early examples are mostly of some classes, late ones of others.

    Every example arrives at (1 - strength) times a random moment plus strength times a random moment within the span of
    its class; classes follow each other in an order drawn once for all clients, or by each for itself. With strength 0
    this is growing data, with 1 one class comes after the other.
    """

    strength: float = 0.7  # from 0 to 1
    shared: bool = True  # is the order of the classes the same for all clients?

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.strength <= 1, f"drifting strength = {self.strength}: lies between 0 and 1")

    def order(self, seed: int, client: int, rows: Tensor, labels: Tensor | None = None) -> Tensor:
        if labels is None or labels.dim() != 1 or labels.is_floating_point():
            raise DataError("data can drift, or arrive class by class, only where every example has one class label")
        moments = torch.rand(len(rows), generator=draws.generator(seed, "arrival order", client), dtype=torch.float64)
        place = _class_positions(labels, seed, None if self.shared else client)
        span = _moments_within_class(place, moments)
        return rows[((1 - self.strength) * moments + self.strength * span).argsort(stable=True)]


@dataclass(frozen=True, kw_only=True)
class ClassIncremental(Drifting):
    """Data that grows class by class: a client meets a new class when it has all its examples of the one before."""

    strength: float = 1.0


STREAMS: dict[str, type[Stream]] = {
    "static": Static,
    "growing": Growing,
    "drifting": Drifting,
    "class_incremental": ClassIncremental,
}


def _class_positions(labels: Tensor, seed: int, client: int | None) -> Tensor:
    """For each example the place of its class in the order of classes, 0 first."""
    counters = () if client is None else (client,)
    classes = sorted(set(labels.tolist()))
    ranked = sorted(classes, key=lambda label: draws.bits(seed, "class order", *counters, label))
    place = torch.zeros(max(classes) + 1, dtype=torch.int64)
    place[torch.tensor(ranked)] = torch.arange(len(ranked))
    return place[labels]


def _moments_within_class(place: Tensor, moments: Tensor) -> Tensor:
    """Moments in [0, 1) again, those of each class within a stretch as long as the class is large."""
    sizes = torch.bincount(place).to(torch.float64) / len(place)
    begins = sizes.cumsum(0) - sizes
    return begins[place] + sizes[place] * moments
