"""Measure FLGo: FedAvg with ten clients per round, FedBuff and FedAsync with twenty clients at work.

Latencies are like ours. Its clock visits all clients at every tick; its FedAsync trains like FedProx. One runner
continues over all rounds, so set-up is not measured.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import flgo
import torch
from comparison import Comparison
from flgo.algorithm import fedasync, fedavg, fedbuff
from flgo.benchmark.partition import BasicPartitioner
from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe
from torch.utils.data import Subset, TensorDataset

from workloads import CLIENTS, CONCURRENCY, EXAMPLES, TRAINING, WORKLOADS, K

# torch 2.13 requires this method from a Subset with its own __getitem__
FromDatasetPipe.TaskDataset.__getitems__ = lambda self, indices: Subset.__getitems__(self, indices)
# a benchmark of FLGo is a folder with this file
CONFIG = "from with_flgo import load_workload\ntrain_data, test_data, get_model = load_workload({name!r})\n"
LATENCY = {"proportion": CONCURRENCY / CLIENTS, "responsiveness": "UNI-10-100"}


def load_workload(name: str) -> tuple[TensorDataset, TensorDataset, Callable[[], torch.nn.Module]]:
    x, y = (torch.cat(parts) for parts in zip(*WORKLOADS[name].client_data(), strict=True))
    return TensorDataset(x, y), TensorDataset(x[:1], y[:1]), WORKLOADS[name].module


class InOrder(BasicPartitioner):
    num_clients = CLIENTS

    def __call__(self, data: Any) -> list[list[int]]:
        return [list(range(i * EXAMPLES, (i + 1) * EXAMPLES)) for i in range(CLIENTS)]


def measure(comparison: Comparison, method: str) -> None:
    config = Path(f"{comparison.name}.py")
    config.write_text(CONFIG.format(name=comparison.name))
    sys.path.insert(0, ".")
    benchmark = importlib.import_module(flgo.gen_benchmark_from_file(f"bench_{comparison.name}", str(config)))
    benchmark.visualize = lambda *_: None  # drawing takes minutes
    flgo.gen_task_by_(benchmark, InOrder(), task_path=comparison.name)
    rounds = comparison.updates // K
    if method == "FedAvg":
        run_rounds(comparison, fedavg, rounds, proportion=K / CLIENTS)
    elif method == "FedBuff":
        run_rounds(comparison, fedbuff, rounds, algo_para=[K / CLIENTS, 1.0], **LATENCY)
    else:
        run_rounds(comparison, fedasync, comparison.updates, **LATENCY)


def run_rounds(comparison: Comparison, algorithm: ModuleType, rounds: int, **option: Any) -> None:
    local = {"num_epochs": TRAINING.epochs, "learning_rate": TRAINING.lr, "batch_size": TRAINING.batch}
    quiet = {"eval_interval": -1, "no_log_console": True, "no_tqdm": True, "train_holdout": 0.0}
    runner = flgo.init(comparison.name, algorithm, option={**local, **quiet, "num_rounds": 0, **option})
    trained = 0

    def count_calls(train_client: Callable[..., Any]) -> Callable[..., Any]:
        def count_and_train(*args: Any, **options: Any) -> Any:
            nonlocal trained
            trained += 1
            return train_client(*args, **options)

        return count_and_train

    for client in runner.clients:
        client.train = count_calls(client.train)

    def train() -> int:
        nonlocal trained
        trained = 0
        runner.num_rounds += rounds
        runner.run()
        return trained

    comparison.measure(train)
