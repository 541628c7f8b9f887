"""Workloads in which workers and other frameworks are compared with a plain PyTorch loop, and that loop.

Examples are synthetic. Each job is one epoch over the examples of a client.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from offbeat.scenario.models import Linear, Lstm, Mlp, Model
from offbeat.scenario.models.convolutional import FEDCOMPASS_MNIST
from offbeat.training.trainer import Training

CLIENTS, EXAMPLES, CONCURRENCY = 50, 200, 20
K = 10  # updates that are averaged, and clients of a round
TRAINING = Training(lr=0.01, batch=64, epochs=1)


@dataclass(frozen=True)
class Workload:
    """A model, the shape of its inputs and the number of updates in one run of a worker."""

    model: Model
    updates: int
    shape: tuple[int, ...] = (1, 28, 28)

    def client_data(self, examples: int = EXAMPLES) -> list[tuple[Tensor, Tensor]]:
        """Generate the inputs and labels of each client."""
        draw = torch.Generator().manual_seed(0)
        return [
            (torch.rand(examples, *self.shape, generator=draw), torch.randint(10, (examples,), generator=draw))
            for _ in range(CLIENTS)
        ]

    def module(self) -> nn.Module:
        """Build the model with its initial weights."""
        return self.model.build(self.shape, 10, seed=0)


WORKLOADS = {
    "W1": Workload(FEDCOMPASS_MNIST, 100),
    "W2": Workload(Linear(), 3000),
    "MLP": Workload(Mlp(hidden=(64,)), 1500),
    "LSTM": Workload(Lstm(hidden=32), 600, (6, 9)),
}


def plain_loop(
    model: nn.Module, jobs: Sequence[tuple[Tensor, Tensor]], training: Training, average: int | None = None
) -> None:
    """Train the jobs one after another, as one would without a framework.

    Each job loads the weights, trains and reads the weights. After every `average` jobs their weights are averaged;
    with None, every job starts from the same weights.
    """
    start, local_weights = copy.deepcopy(model.state_dict()), []
    assert training.epochs is not None
    for x, y in jobs:
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=training.lr)
        for _ in range(training.epochs):
            order = torch.randperm(len(x))
            for i in range(0, len(x), training.batch):
                batch = order[i : i + training.batch]
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
        if average is None:
            continue
        local_weights.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        if len(local_weights) == average:
            start = {name: torch.stack([local[name] for local in local_weights]).mean(0) for name in start}
            local_weights.clear()
