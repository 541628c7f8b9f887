"""Compare with Flower's strategies, which get the replies of a round as messages."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
from arrivals import EXAMPLES, START, ComparisonRow, RoundPeer, Table, Vector
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as strategies
from flwr.supercore.task_identity import TaskIdentity

from offbeat.core.strategies.fedadam import FedAdam
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedavgm import FedAvgM

logging.getLogger("flwr").setLevel(logging.WARNING)
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # required by messages
NODES = SimpleNamespace(get_node_ids=lambda: list(EXAMPLES))


def record(w: Vector) -> ArrayRecord:
    return ArrayRecord({"w": Array(w)})


def reply(client: int, local: Vector) -> Message:
    metrics = MetricRecord({"num-examples": EXAMPLES[client]})
    return Message(RecordDict({"arrays": record(local), "metrics": metrics}), dst_node_id=1, message_type="train")


class SyncPeer(RoundPeer):
    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.theirs = theirs

    def average(self, answers: dict[int, Vector]) -> Vector:
        turn = self.version + 1  # rounds count from 1
        self.theirs.configure_train(turn, record(self.model), ConfigRecord(), NODES)
        arrays, _ = self.theirs.aggregate_train(turn, [reply(client, local) for client, local in answers.items()])
        mean: Vector = arrays["w"].numpy()
        return mean


class UncorrectedAdamPeer(SyncPeer):
    """Flower's FedAdam without its two differences: v starts at tau^2 and eta is divided by the bias correction."""

    def average(self, answers: dict[int, Vector]) -> Vector:
        theirs, t = self.theirs, self.version + 1
        if theirs.v_t is None:
            theirs.v_t = {"w": np.full_like(START, theirs.tau**2)}
        theirs.eta = 0.1 * (1 - theirs.beta_1 ** (t + 1)) / np.sqrt(1 - theirs.beta_2 ** (t + 1))
        return super().average(answers)


def rows() -> Iterable[ComparisonRow]:
    table = Table("flwr")
    table.same("FedAvg", SyncPeer(strategies.FedAvg()), FedAvg(sample=3))
    table.same("FedAvgM, server_momentum=0.9", SyncPeer(strategies.FedAvgM(server_momentum=0.9)), FedAvgM(sample=3))
    table.differs(
        "v starts at 0, not tau^2, and eta is multiplied by sqrt(1 - beta_2^(t+1)) / (1 - beta_1^(t+1)), t from 1",
        "FedAdam", SyncPeer(strategies.FedAdam()), FedAdam(sample=3),
    )  # fmt: skip
    table.same(
        "FedAdam, with v_0 = tau^2 and without the bias correction",
        UncorrectedAdamPeer(strategies.FedAdam()),
        FedAdam(sample=3),
    )
    return table.rows
