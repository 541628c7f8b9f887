"""Measure Flower on Ray: FedAvg, ten clients per round, actors with one thread each.

One server continues over all rounds, so starting Ray and its actors and their first use are not measured. Ray listens
on all interfaces, so this runs in a network with only a loopback interface.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import torch
from comparison import Comparison
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from workloads import CLIENTS, TRAINING, K

logging.getLogger("flwr").setLevel(logging.ERROR)


@cache
def cached_workload(name: str) -> Comparison:
    """Build a workload once per actor."""
    return Comparison.on_workload(name)


def client_app(workload: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        comparison = cached_workload(workload)
        module = comparison.module
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = comparison.client_data[int(context.node_config["partition-id"])]
        optimizer = torch.optim.SGD(module.parameters(), lr=TRAINING.lr)
        for batch in torch.randperm(len(x)).split(TRAINING.batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimizer.step()
        content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
        return Message(RecordDict(content), reply_to=message)

    return app


def measure(comparison: Comparison, method: str) -> None:
    """Measure one method, whose name ends with the number of actors."""
    actors = int(method.split()[-2])
    server, reply_counts = ServerApp(), list[int]()

    def count_replies(replies: list[RecordDict], key: str) -> MetricRecord:
        reply_counts.append(len(replies))
        return MetricRecord()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=K / CLIENTS,
            fraction_evaluate=0.0,
            min_train_nodes=K,  # at the start not all nodes are connected, so a fraction of them would be too few
            min_available_nodes=CLIENTS,
            train_metrics_aggr_fn=count_replies,
        )
        arrays = ArrayRecord(comparison.module.state_dict())

        def train() -> int:
            reply_counts.clear()
            strategy.start(grid, arrays, num_rounds=comparison.updates // K)
            if sum(reply_counts) != comparison.updates:
                raise RuntimeError(f"{sum(reply_counts)} of {comparison.updates} clients replied")
            return comparison.updates

        comparison.measure(train, cpu_time=False)  # actors are not child processes of this one

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    init = {
        "address": "local", "_temp_dir": str(Path.cwd()), "num_cpus": actors,  # a new cluster in a temporary folder
        "logging_level": logging.ERROR, "log_to_driver": False,
    }  # fmt: skip
    backend = {"client_resources": resources, "init_args": init}
    run_simulation(server, client_app(comparison.name), CLIENTS, backend_config=backend)
