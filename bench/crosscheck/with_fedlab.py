"""Compare with FedLab's asynchronous handler and its FedAvg aggregator."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from unittest.mock import MagicMock

import torch
from arrivals import EXAMPLES, ComparisonRow, Peer, RoundPeer, Table, Vector, Weights

from offbeat.core.parts.staleness import Hinge
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg

sys.modules.setdefault("torchvision", MagicMock())  # needed only for its data sets

from fedlab.contrib.algorithm.basic_server import AsyncServerHandler  # noqa: E402
from fedlab.utils.aggregator import Aggregators  # noqa: E402


class AsyncPeer(Peer):
    def __init__(self, **optim: Any) -> None:
        super().__init__()
        self.theirs = AsyncServerHandler(Weights(), global_round=1000)
        self.theirs.setup_optim(**optim)

    def serve(self, client: int) -> None:
        self.since[client] = self.theirs.downlink_package[1]

    def arrive(self, client: int, local: Vector, now: float) -> None:
        self.theirs.load([torch.tensor(local), self.since[client]])
        self.commit(self.theirs.model_parameters.numpy())


class SyncPeer(RoundPeer):
    def average(self, answers: dict[int, Vector]) -> Vector:
        models = [torch.tensor(local) for local in answers.values()]
        mean: Vector = Aggregators.fedavg_aggregate(models, [EXAMPLES[client] for client in answers]).numpy()
        return mean


@dataclass(frozen=True)
class FedlabHinge:
    """FedLab's hinge; `staleness` accepts any function of u."""

    a: float = 10.0
    b: float = 1.0

    def __call__(self, u: int) -> float:
        return 1.0 if u <= self.b else 1.0 / (self.a * (u - self.b + 1))


def rows() -> Iterable[ComparisonRow]:
    table = Table("fedlab")
    table.same("AsyncServerHandler, polynomial", AsyncPeer(alpha=0.6, strategy="polynomial", a=0.5), FedAsync())
    hinge = {"strategy": "hinge", "a": 10.0, "b": 1.0}
    table.same("AsyncServerHandler, hinge", AsyncPeer(alpha=0.6, **hinge), FedAsync(staleness=FedlabHinge()))
    table.differs(
        "hinge above b: 1 / (a (u - b + 1)), with + 1 inside the product", "AsyncServerHandler, hinge",
        AsyncPeer(alpha=0.6, **hinge), FedAsync(staleness=Hinge(a=10.0, b=1.0)),
    )  # fmt: skip
    table.same("Aggregators.fedavg_aggregate", SyncPeer(), FedAvg(sample=3))
    return table.rows
