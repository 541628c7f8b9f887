"""Measure FedLab: FedAvg on its standalone pipeline, ten clients per round."""

from __future__ import annotations

import copy
import sys
from unittest.mock import MagicMock

from comparison import Comparison
from torch.utils.data import DataLoader, TensorDataset

from workloads import CLIENTS, TRAINING, K

sys.modules.setdefault("torchvision", MagicMock())  # needed only for its data sets

from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler  # noqa: E402
from fedlab.contrib.dataset.basic_dataset import FedDataset  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Clients(FedDataset):
    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.sets = [TensorDataset(x, y) for x, y in comparison.client_data]

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader[object]:
        return DataLoader(self.sets[id], batch_size=batch_size, shuffle=True)


class Pipeline(StandalonePipeline):
    def evaluate(self) -> None:
        """Do nothing; the original is an example that prints."""


def measure(comparison: Comparison, method: str) -> None:
    handler = FedAvgServerHandler(copy.deepcopy(comparison.module), global_round=0, sample_ratio=K / CLIENTS)
    trainer = FedAvgSerialClientTrainer(copy.deepcopy(comparison.module), CLIENTS)
    trainer.setup_dataset(Clients(comparison))
    trainer.setup_optim(TRAINING.epochs, TRAINING.batch, TRAINING.lr)
    pipeline = Pipeline(handler, trainer)

    def train() -> int:
        handler.global_round += comparison.updates // K
        pipeline.main()
        return comparison.updates

    comparison.measure(train)
