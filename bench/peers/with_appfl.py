"""APPFL: its virtual-time simulator (vsim) with FedAsync, twenty clients at work. Without optimize_memory, which is its
default and collects garbage several times an update. Setting up is left out: one driver goes on over all rounds.
"""

from __future__ import annotations

import logging
import random
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from alternate import Given
from torch.utils.data import TensorDataset

from workloads import AT_WORK, CLIENTS, TRAINING

sys.modules.setdefault("piq", MagicMock())  # pictures' quality: for reports on data

from appfl.agent import SimClientAgent, SimServerAgent  # noqa: E402
from appfl.vsim import AsyncSimDriver, ClientProfile  # noqa: E402

MODEL = "from workloads import WORLDS\n\n\ndef model(name):\n    return WORLDS[name].module()\n"
METRIC = "def accuracy(true, predicted):\n    return (true == predicted.argmax(1)).mean()\n"


def config(given: Given) -> dict[str, Any]:
    Path("model.py").write_text(MODEL)
    Path("metric.py").write_text(METRIC)
    frugal = {"optimize_memory": False}
    training = {
        "mode": "epoch", "num_local_epochs": TRAINING.epochs, "optim": "SGD", "optim_args": {"lr": TRAINING.lr},
        "train_batch_size": TRAINING.batch, "loss_fn": "CrossEntropyLoss", "metric_path": "metric.py",
        "metric_name": "accuracy", **frugal,
    }  # fmt: skip
    return {
        "model_configs": {"model_path": "model.py", "model_name": "model", "model_kwargs": {"name": given.name}},
        "algorithm_configs": {
            "num_global_epochs": 0, "scheduler": "AsyncScheduler", "aggregator": "FedAsyncAggregator",
            "scheduler_kwargs": {"num_clients": CLIENTS, **frugal}, "trainer_kwargs": training,
            "aggregator_kwargs": {
                "alpha": 0.6, "staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": 0.5}, "num_clients": CLIENTS,
                **frugal,
            },
        },
        "server_configs": dict(frugal),
    }  # fmt: skip


def measure(given: Given, way: str) -> None:
    logging.disable(logging.CRITICAL)
    settings = config(given)
    server = SimServerAgent(settings, num_clients=CLIENTS)
    clients = [
        SimClientAgent(settings, client_id=str(i), client_dataset=(TensorDataset(x, y), None))
        for i, (x, y) in enumerate(given.pairs)
    ]
    for client in clients:
        client.optimize_memory = False  # read from where a simulated client has no setting
    draw = random.Random(0)
    profiles = {client.get_id(): ClientProfile(compute_factor=draw.uniform(1.0, 10.0)) for client in clients}

    driver = AsyncSimDriver(server, clients, profiles, AT_WORK, logging.getLogger("vsim"), base_step_time=1.0)

    def more() -> int:
        server.server_agent_config.server_configs.num_global_epochs += given.updates
        driver.run()
        return given.updates  # as many are trained, but for the first time, when those at work come on top

    given.measure(more)
