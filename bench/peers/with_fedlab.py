"""FedLab: FedAvg on its standalone pipeline, ten clients a round."""

from __future__ import annotations

import copy
import sys
from unittest.mock import MagicMock

from alternate import Given
from torch.utils.data import DataLoader, TensorDataset

from workloads import CLIENTS, TRAINING, K

sys.modules.setdefault("torchvision", MagicMock())  # only its data sets need it

from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler  # noqa: E402
from fedlab.contrib.dataset.basic_dataset import FedDataset  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Clients(FedDataset):
    def __init__(self, given: Given) -> None:
        super().__init__()
        self.sets = [TensorDataset(x, y) for x, y in given.pairs]

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader[object]:
        return DataLoader(self.sets[id], batch_size=batch_size, shuffle=True)


class Pipeline(StandalonePipeline):
    def evaluate(self) -> None:
        """Theirs is an example that prints."""


def measure(given: Given, way: str) -> None:
    handler = FedAvgServerHandler(copy.deepcopy(given.module), global_round=0, sample_ratio=K / CLIENTS)
    trainer = FedAvgSerialClientTrainer(copy.deepcopy(given.module), CLIENTS)
    trainer.setup_dataset(Clients(given))
    trainer.setup_optim(TRAINING.epochs, TRAINING.batch, TRAINING.lr)
    pipeline = Pipeline(handler, trainer)

    def rounds() -> int:
        handler.global_round += given.updates // K
        pipeline.main()
        return given.updates

    given.measure(rounds)
