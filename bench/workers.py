"""Compare each worker with a plain PyTorch loop on one thread that runs the same jobs.

    python bench/workers.py                      all workloads, all workers
    python bench/workers.py W1 processes:2       chosen workloads and workers

W1: 50 clients with 200 synthetic images of 28×28 each, FedCompass's CNN (582,026 parameters), SGD 0.01, batches of 64,
one epoch, FedBuff (k = 10) with 20 clients at work. W2: one linear layer instead; MLP: a hidden layer of 64; LSTM: 32
units on series of 6 times 9 numbers.

The loop and each worker run once per round. Printed are ratios to the loop in the same round: of wall time, and of the
CPU time of all cores, which is more reliable on a machine with other load. Times include starting and stopping
processes; the duration of the first jobs alone is printed too. `ray`, if installed, starts its own cluster on all
cores; the CPU time of its processes is not included, because they are not child processes.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import torch

from measurement import describe_machine, format_median, time_ratios, versions, wall_seconds
from offbeat.core.strategies import FedBuff
from offbeat.engine.until import Until
from offbeat.experiment import build
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.delays import Uniform
from offbeat.training.client_data import ClientData
from offbeat.training.evaluation import Evaluator, Survey
from offbeat.workers import registry
from workloads import CLIENTS, CONCURRENCY, EXAMPLES, TRAINING, WORKLOADS, K, plain_loop

ROUNDS = 5
WORKERS = ("inline", "processes:2", "batched:1", "batched:2", *(["ray"] if find_spec("ray") else []))


def measure(name: str, workers: tuple[str, ...] = WORKERS) -> None:
    """Measure these workers on one workload."""
    workload = WORKLOADS[name]
    client_data, module = workload.client_data(EXAMPLES), workload.module()
    experiment = Experiment(
        clients=CLIENTS,
        delays=Uniform(low=10.0, high=100.0),
        training=TRAINING,
        strategy=FedBuff(k=K, concurrency=CONCURRENCY),
        until=Until(updates=workload.updates),
        evaluate_every=1e9,
        survey=Survey(examples=0),  # measure training only
    )
    first_jobs = replace(experiment, until=Until(updates=CONCURRENCY))
    x, y = client_data[0]
    setup = build.assemble(module, ClientData.separate(client_data), Evaluator(module, x[:1], y[:1]), experiment)

    def run_with(worker: str, chosen: Experiment = experiment) -> Callable[[], object]:
        return lambda: build.build_engine(
            setup, chosen, worker=registry.make_worker(registry.parse_worker(worker), setup.trainer)
        ).run()

    torch.set_num_threads(1)
    jobs = [client_data[client] for client in arrival_order(setup, experiment)]
    plain_loop(copy.deepcopy(module), jobs[:K], TRAINING, average=K)  # warm-up
    for worker in workers:
        run_with(worker, first_jobs)()  # warm-up: some workers compile code once
    ratios, shortest = time_ratios(
        {worker: run_with(worker) for worker in workers},
        lambda: plain_loop(copy.deepcopy(module), jobs, TRAINING, average=K),
        ROUNDS,
    )
    parameters = sum(parameter.numel() for parameter in module.parameters())
    print(f"{name}: {parameters:,} parameters, {len(jobs)} jobs; the plain loop takes {shortest:.2f} s at best")
    for worker, values in ratios.items():
        wall, cpu = zip(*values, strict=True)
        start = min(wall_seconds(run_with(worker, first_jobs)) for _ in range(3))
        print(
            f"{name}: {worker} / plain loop = {format_median(wall)}; CPU time of all cores {format_median(cpu)}; "
            f"its first {CONCURRENCY} jobs take {1e3 * start:.0f} ms"
        )


def arrival_order(setup: build.Setup, experiment: Experiment) -> list[int]:
    """Return the clients in the order in which their updates arrive; it does not depend on the worker."""
    engine = build.build_engine(setup, experiment)
    engine.run()
    return [client for (client,) in engine.trace.rows("SELECT client FROM trace WHERE kind = 'arrive' ORDER BY seq")]


if __name__ == "__main__":
    print(f"{describe_machine()}; {versions('offbeat', 'torch', 'numpy')}")
    arguments = sys.argv[1:]
    workers = tuple(word for word in arguments if word not in WORKLOADS) or WORKERS
    for worker in workers:
        registry.parse_worker(worker)
    for name in [word for word in arguments if word in WORKLOADS] or WORKLOADS:
        measure(name, workers)
