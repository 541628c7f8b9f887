"""FLGo: FedAvg with ten clients a round, FedBuff and FedAsync with twenty at work whose latencies are as ours. Its
clock ticks over all clients; its FedAsync has FedProx's client. Setting up is left out: one runner goes on over all
rounds.
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
from alternate import Given
from flgo.algorithm import fedasync, fedavg, fedbuff
from flgo.benchmark.partition import BasicPartitioner
from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe
from torch.utils.data import Subset, TensorDataset

from workloads import AT_WORK, CLIENTS, EXAMPLES, TRAINING, WORLDS, K

# torch 2.13 asks a Subset that has its own __getitem__ for this too
FromDatasetPipe.TaskDataset.__getitems__ = lambda self, indices: Subset.__getitems__(self, indices)
# a benchmark of theirs is a folder with this file
CONFIG = "from with_flgo import chosen\ntrain_data, test_data, get_model = chosen({name!r})\n"
LATENCY = {"proportion": AT_WORK / CLIENTS, "responsiveness": "UNI-10-100"}


def chosen(name: str) -> tuple[TensorDataset, TensorDataset, Callable[[], torch.nn.Module]]:
    x, y = (torch.cat(parts) for parts in zip(*WORLDS[name].pairs(), strict=True))
    return TensorDataset(x, y), TensorDataset(x[:1], y[:1]), WORLDS[name].module


class InOrder(BasicPartitioner):
    num_clients = CLIENTS

    def __call__(self, data: Any) -> list[list[int]]:
        return [list(range(i * EXAMPLES, (i + 1) * EXAMPLES)) for i in range(CLIENTS)]


def measure(given: Given, way: str) -> None:
    config = Path(f"{given.name}.py")
    config.write_text(CONFIG.format(name=given.name))
    sys.path.insert(0, ".")
    benchmark = importlib.import_module(flgo.gen_benchmark_from_file(f"bench_{given.name}", str(config)))
    benchmark.visualize = lambda *_: None  # minutes of drawing
    flgo.gen_task_by_(benchmark, InOrder(), task_path=given.name)
    rounds = given.updates // K
    if way == "FedAvg":
        go_on(given, fedavg, rounds, proportion=K / CLIENTS)
    elif way == "FedBuff":
        go_on(given, fedbuff, rounds, algo_para=[K / CLIENTS, 1.0], **LATENCY)
    else:
        go_on(given, fedasync, given.updates, **LATENCY)


def go_on(given: Given, algorithm: ModuleType, rounds: int, **option: Any) -> None:
    local = {"num_epochs": TRAINING.epochs, "learning_rate": TRAINING.lr, "batch_size": TRAINING.batch}
    quiet = {"eval_interval": -1, "no_log_console": True, "no_tqdm": True, "train_holdout": 0.0}
    runner = flgo.init(given.name, algorithm, option={**local, **quiet, "num_rounds": 0, **option})
    trained = 0

    def counted(train: Callable[..., Any]) -> Callable[..., Any]:
        def once(*args: Any, **named: Any) -> Any:
            nonlocal trained
            trained += 1
            return train(*args, **named)

        return once

    for client in runner.clients:
        client.train = counted(client.train)

    def more() -> int:
        nonlocal trained
        trained = 0
        runner.num_rounds += rounds
        runner.run()
        return trained

    given.measure(more)
