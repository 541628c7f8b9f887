"""Measure APPFL: its virtual-time simulator (vsim) with FedAsync, twenty clients at work.

optimize_memory is off; it is on by default and collects garbage several times per update. One driver continues over all
rounds, so set-up is not measured.
"""

from __future__ import annotations

import logging
import random
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from comparison import Comparison
from torch.utils.data import TensorDataset

from workloads import CLIENTS, CONCURRENCY, TRAINING

sys.modules.setdefault("piq", MagicMock())  # image quality, used only for reports on data

from appfl.agent import SimClientAgent, SimServerAgent  # noqa: E402
from appfl.vsim import AsyncSimDriver, ClientProfile  # noqa: E402

MODEL = "from workloads import WORKLOADS\n\n\ndef model(name):\n    return WORKLOADS[name].module()\n"
METRIC = "def accuracy(true, predicted):\n    return (true == predicted.argmax(1)).mean()\n"


def config(comparison: Comparison) -> dict[str, Any]:
    Path("model.py").write_text(MODEL)
    Path("metric.py").write_text(METRIC)
    no_collection = {"optimize_memory": False}
    training = {
        "mode": "epoch", "num_local_epochs": TRAINING.epochs, "optim": "SGD", "optim_args": {"lr": TRAINING.lr},
        "train_batch_size": TRAINING.batch, "loss_fn": "CrossEntropyLoss", "metric_path": "metric.py",
        "metric_name": "accuracy", **no_collection,
    }  # fmt: skip
    return {
        "model_configs": {"model_path": "model.py", "model_name": "model", "model_kwargs": {"name": comparison.name}},
        "algorithm_configs": {
            "num_global_epochs": 0, "scheduler": "AsyncScheduler", "aggregator": "FedAsyncAggregator",
            "scheduler_kwargs": {"num_clients": CLIENTS, **no_collection}, "trainer_kwargs": training,
            "aggregator_kwargs": {
                "alpha": 0.6, "staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": 0.5}, "num_clients": CLIENTS,
                **no_collection,
            },
        },
        "server_configs": dict(no_collection),
    }  # fmt: skip


def measure(comparison: Comparison, method: str) -> None:
    logging.disable(logging.CRITICAL)
    settings = config(comparison)
    server = SimServerAgent(settings, num_clients=CLIENTS)
    clients = [
        SimClientAgent(settings, client_id=str(i), client_dataset=(TensorDataset(x, y), None))
        for i, (x, y) in enumerate(comparison.client_data)
    ]
    for client in clients:
        client.optimize_memory = False  # simulated clients do not read this setting
    draw = random.Random(0)
    profiles = {client.get_id(): ClientProfile(compute_factor=draw.uniform(1.0, 10.0)) for client in clients}

    driver = AsyncSimDriver(server, clients, profiles, CONCURRENCY, logging.getLogger("vsim"), base_step_time=1.0)

    def train() -> int:
        server.server_agent_config.server_configs.num_global_epochs += comparison.updates
        driver.run()
        return comparison.updates  # the first call also trains the clients at work at its end

    comparison.measure(train)
