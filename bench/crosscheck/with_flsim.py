"""Compare with FLSim's asynchronous aggregators and staleness weights, and with its server optimizers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from arrivals import EXAMPLES, START, ComparisonRow, Peer, RoundPeer, Table, Vector, Weights
from torch import nn

from offbeat.core.strategies.fedadam import FedAdam
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavgm import FedAvgM
from offbeat.core.strategies.fedbuff import FedBuff

_dataclass = dataclasses.dataclass


def _hashable(cls: Any = None, /, **options: Any) -> Any:
    """Make FLSim's dataclasses hashable, because Python 3.11 requires hashable defaults."""
    if cls is None:
        return lambda decorated: _hashable(decorated, **options)
    return _dataclass(cls, **options, **({"unsafe_hash": True} if cls.__module__.startswith("flsim") else {}))


dataclasses.dataclass = _hashable
try:
    from flsim.optimizers import async_aggregators as aggregators
    from flsim.optimizers import server_optimizers as optimizers
    from flsim.utils.async_trainer.async_staleness_weights import PolynomialStalenessWeight
finally:
    dataclasses.dataclass = _dataclass

BUFF, ASYNC = (
    aggregators.AsyncAggregationType.fed_buff_aggregation,
    aggregators.AsyncAggregationType.fed_async_aggregation,
)


class FlsimWeights(Weights):
    def fl_get_module(self) -> nn.Module:
        return self


class AsyncPeer(Peer):
    def __init__(self, name: str, avg_staleness: int, **configs: Any) -> None:
        super().__init__()
        self.theirs = getattr(aggregators, name)(global_model=FlsimWeights(START), **configs)
        self.weight = PolynomialStalenessWeight(exponent=0.5, avg_staleness=avg_staleness)

    def serve(self, client: int) -> None:
        self.base[client], self.since[client] = self.model.copy(), self.theirs.global_seqnum

    def arrive(self, client: int, local: Vector, now: float) -> None:
        weight = self.weight.weight(self.theirs.model_staleness(self.since[client]))
        self.theirs.zero_grad()
        self.theirs.on_client_training_end(FlsimWeights(self.base[client] - local), FlsimWeights(local), weight)
        self.model = self.theirs.global_model.w.detach().numpy().copy()


class OptimizerPeer(RoundPeer):
    def __init__(self, name: str, **configs: Any) -> None:
        super().__init__()
        self.weights = FlsimWeights(START)
        self.theirs = getattr(optimizers, name)(model=self.weights, **configs)

    def average(self, answers: dict[int, Vector]) -> Vector:
        n = sum(EXAMPLES[client] for client in answers)
        d = sum(EXAMPLES[client] / n * (self.model - local) for client, local in answers.items())
        self.weights.w.grad = torch.tensor(d)
        self.theirs.step()
        return self.weights.w.detach().numpy()


def rows() -> Iterable[ComparisonRow]:
    table = Table("flsim")
    fedbuff = "FedAvgWithLRFedBuffAggregator"
    table.same(
        f"{fedbuff}, lr=1/K, avg_staleness=0", AsyncPeer(fedbuff, avg_staleness=0, lr=1 / 3, buffer_size=3),
        FedBuff(k=3),
    )  # fmt: skip
    table.differs(
        "a sum, not a mean (lr absorbs K), and weights are 1 at u = avg_staleness, by default 1: lr' = lr K sqrt(1 + "
        "avg_staleness)",
        f"{fedbuff}, lr=0.2", AsyncPeer(fedbuff, avg_staleness=1, lr=0.2, buffer_size=3), FedBuff(k=3, lr=0.2),
    )  # fmt: skip
    lr = 0.2 * 3 * 2**0.5
    table.same(f"{fedbuff}, lr=0.2", AsyncPeer(fedbuff, avg_staleness=1, lr=0.2, buffer_size=3), FedBuff(k=3, lr=lr))
    single = "FedAvgWithLRAsyncAggregator"
    table.same(
        f"{single}, fed_async_aggregation, avg_staleness=0",
        AsyncPeer(single, avg_staleness=0, lr=0.6, aggregation_type=ASYNC),
        FedAsync(),
    )  # fmt: skip
    table.same(
        f"{single}, fed_buff_aggregation, avg_staleness=0", AsyncPeer(single, avg_staleness=0, lr=0.6,
        aggregation_type=BUFF),
        FedAsync(mode="delta"),
    )  # fmt: skip
    table.same(
        "FedAvgWithLROptimizer, lr=1, momentum=0.9",
        OptimizerPeer("FedAvgWithLROptimizer", lr=1.0, momentum=0.9),
        FedAvgM(sample=3),
    )
    table.differs(
        "torch.optim.Adam: both moments bias-corrected, v starts at 0, weight_decay=1e-5 by default",
        "FedAdamOptimizer", OptimizerPeer("FedAdamOptimizer", lr=0.1, beta1=0.9, beta2=0.99, eps=1e-3),
        FedAdam(sample=3),
    )  # fmt: skip
    return table.rows
