"""Measure pfl: FedAvg, ten users per iteration.

One algorithm continues over all rounds, so the evaluation at iteration 0, which pfl always does, is not measured.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from comparison import Comparison
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from workloads import TRAINING, K


class Classifier(nn.Module):
    """A module with the loss and metrics that pfl requires."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return nn.functional.cross_entropy(self.module(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        with torch.no_grad():
            return {"loss": Weighted(self.loss(x, y, eval=True).item() * len(y), len(y))}


def measure(comparison: Comparison, method: str) -> None:
    module = Classifier(copy.deepcopy(comparison.module))
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    users = FederatedDataset(
        lambda user: Dataset(raw_data=comparison.client_data[user]),
        get_user_sampler("random", list(range(len(comparison.client_data)))),
    )
    backend, algorithm = SimulatedBackend(users, users), FederatedAveraging()
    assert TRAINING.epochs is not None
    train = NNTrainHyperParams(
        local_num_epochs=TRAINING.epochs, local_learning_rate=TRAINING.lr, local_batch_size=TRAINING.batch
    )
    iterations = 0

    def train_users() -> int:
        nonlocal iterations
        iterations += comparison.updates // K
        params = NNAlgorithmParams(
            central_num_iterations=iterations, evaluation_frequency=10**9, train_cohort_size=K, val_cohort_size=0
        )
        algorithm.run(params, backend, model, train, send_metrics_to_platform=False)
        return comparison.updates

    comparison.measure(train_users)
