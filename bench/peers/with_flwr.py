"""Flower on Ray: FedAvg, ten clients a round, on so many actors of one thread. Starting Ray and its actors, and their
first use, is left out: the rounds are those of one server. Ray listens on all interfaces; who runs this does it where
there is only a loopback.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import torch
from alternate import Given
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from workloads import CLIENTS, TRAINING, K

logging.getLogger("flwr").setLevel(logging.ERROR)


@cache
def kept(world: str) -> Given:
    """In an actor."""
    return Given.of(world)


def client(world: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        given = kept(world)
        module = given.module
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = given.pairs[int(context.node_config["partition-id"])]
        optimizer = torch.optim.SGD(module.parameters(), lr=TRAINING.lr)
        for batch in torch.randperm(len(x)).split(TRAINING.batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
            optimizer.step()
        found = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
        return Message(RecordDict(found), reply_to=message)

    return app


def measure(given: Given, way: str) -> None:
    """`way` ends with the number of actors."""
    actors = int(way.split()[-2])
    server, answers = ServerApp(), list[int]()

    def counted(replies: list[RecordDict], key: str) -> MetricRecord:
        answers.append(len(replies))
        return MetricRecord()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=K / CLIENTS,
            fraction_evaluate=0.0,
            min_train_nodes=K,  # at first not all nodes are there to take a fraction of
            min_available_nodes=CLIENTS,
            train_metrics_aggr_fn=counted,
        )
        arrays = ArrayRecord(given.module.state_dict())

        def rounds() -> int:
            answers.clear()
            strategy.start(grid, arrays, num_rounds=given.updates // K)
            if sum(answers) != given.updates:
                raise RuntimeError(f"{sum(answers)} of {given.updates} clients answered")
            return given.updates

        given.measure(rounds, cores=False)  # actors are no children of this process

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    init = {
        "address": "local", "_temp_dir": str(Path.cwd()), "num_cpus": actors,  # nobody else's cluster, nothing left
        "logging_level": logging.ERROR, "log_to_driver": False,
    }  # fmt: skip
    backend = {"client_resources": resources, "init_args": init}
    run_simulation(server, client(given.name), CLIENTS, backend_config=backend)
