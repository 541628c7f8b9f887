"""The worlds in which workers, and other frameworks, are measured against a plain loop: made-up examples, one epoch a
job.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from offbeat.scenario.models import Linear, Lstm, Mlp, Model
from offbeat.scenario.models.convolutional import FEDCOMPASS_MNIST
from offbeat.training.trainer import Training

CLIENTS, EXAMPLES, K, AT_WORK = 50, 200, 10, 20
TRAINING = Training(lr=0.01, batch=64, epochs=1)


@dataclass(frozen=True)
class World:
    model: Model
    updates: int  # of the workers' runs
    shape: tuple[int, ...] = (1, 28, 28)

    def pairs(self, examples: int = EXAMPLES) -> list[tuple[Tensor, Tensor]]:
        """What each client has."""
        draw = torch.Generator().manual_seed(0)
        return [
            (torch.rand(examples, *self.shape, generator=draw), torch.randint(10, (examples,), generator=draw))
            for _ in range(CLIENTS)
        ]

    def module(self) -> nn.Module:
        return self.model.build(self.shape, 10, seed=0)


WORLDS = {
    "W1": World(FEDCOMPASS_MNIST, 100),
    "W2": World(Linear(), 3000),
    "MLP": World(Mlp(hidden=(64,)), 1500),
    "LSTM": World(Lstm(hidden=32), 600, (6, 9)),
}
