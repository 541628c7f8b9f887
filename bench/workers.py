"""What each worker takes, over a plain PyTorch loop on one thread that does the same local trainings.

    python bench/workers.py                      all worlds, all workers
    python bench/workers.py W1 processes:2       one world, one worker; several of each are fine

W1: 50 clients with 200 made-up pictures of 28×28 each, FedCompass's CNN (582,026 parameters), SGD 0.01, batches of 64,
one epoch, FedBuff (k = 10) with 20 clients at work. W2: the same with one linear layer; MLP: with a hidden layer of 64;
LSTM: 32 units on series of 6 times 9 numbers. Times of a worker hold the start and the end of its processes; what a run
of the first jobs alone takes is told beside it. In every round everybody runs once; told are ratios to the plain loop
of the same round: on the wall, and of what all cores did, which says more where others use them too. `ray`, where it
is installed, starts a cluster of its own on all cores; the work of its processes is not seen here, as they are no
children of this one.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import nn

from machine import machine, versions
from offbeat.core.strategies import FedBuff
from offbeat.engine.until import Until
from offbeat.experiment import build
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.delays import Uniform
from offbeat.training.client_data import ClientData
from offbeat.training.evaluation import Evaluator
from offbeat.training.survey import Survey
from offbeat.workers import registry
from plain import plain_loop, ratios, told
from plain import wall as wall_of
from workloads import AT_WORK, CLIENTS, EXAMPLES, TRAINING, WORLDS, K

ROUNDS = 5
WORKERS = ("inline", "processes:2", "batched:1", "batched:2", *(["ray"] if find_spec("ray") else []))


def measure(name: str, chosen: tuple[str, ...] = WORKERS) -> None:
    world = WORLDS[name]
    pairs, module = world.pairs(EXAMPLES), world.module()
    experiment = Experiment(
        clients=CLIENTS,
        delays=Uniform(low=10.0, high=100.0),
        training=TRAINING,
        strategy=FedBuff(k=K, concurrency=AT_WORK),
        until=Until(updates=world.updates),
        evaluate_every=1e9,
        survey=Survey(examples=0),  # training is what is measured
    )
    first = replace(experiment, until=Until(updates=AT_WORK))
    clients = ClientData.own(pairs)
    setup = build.assemble(module, clients, Evaluator(module, pairs[0][0][:1], pairs[0][1][:1]), experiment)

    def with_(worker: str, some: Experiment = experiment) -> Callable[[], object]:
        return lambda: build.engine(setup, some, worker=registry.make(registry.parse(worker), setup.trainer)).run()

    torch.set_num_threads(1)
    order = who_trains(setup, experiment)
    jobs = [pairs[client] for client in order]
    loop: Callable[[], object] = lambda: plain_loop(copy.deepcopy(module), jobs, TRAINING, average=K)  # noqa: E731
    plain_loop(copy.deepcopy(module), jobs[:K], TRAINING, average=K)  # warm
    for worker in chosen:
        with_(worker, first)()  # whatever is made once is made before, as a loop may have to be compiled
    found, least = ratios({worker: with_(worker) for worker in chosen}, loop, ROUNDS)
    print(f"{name}: {size(module):,} parameters, {len(jobs)} jobs; the plain loop takes {least:.2f} s at best")
    for worker, values in found.items():
        wall, work = zip(*values, strict=True)
        start = min(wall_of(with_(worker, first)) for _ in range(3))
        print(
            f"{name}: {worker} / plain loop = {told(wall)}; work of all cores {told(work)}; "
            f"its first {AT_WORK} jobs take {1e3 * start:.0f} ms"
        )


def who_trains(setup: build.Setup, experiment: Experiment) -> list[int]:
    """The clients whose updates arrive, in order: in virtual time it is the same for every worker."""
    engine = build.engine(setup, experiment)
    engine.run()
    return [client for (client,) in engine.trace.rows("SELECT client FROM trace WHERE kind = 'arrive' ORDER BY seq")]


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


if __name__ == "__main__":
    print(f"{machine()}; {versions('offbeat', 'torch', 'numpy', 'numba')}")
    asked = sys.argv[1:]
    chosen = tuple(word for word in asked if word not in WORLDS) or WORKERS
    for worker in chosen:
        registry.parse(worker)
    for name in [word for word in asked if word in WORLDS] or WORLDS:
        measure(name, chosen)
