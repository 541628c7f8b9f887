"""What stacking clients saves: time of whole runs with the workers `inline`, `batched:1` and `batched:2`, over a plain
PyTorch loop that does the same local trainings.

    python bench/batched.py              all of it
    python bench/batched.py linear       one of linear, cnn, mlp, lstm
    python bench/batched.py linear 31    with so many alternations

Each alternation times every worker and the loop, one after the other, and takes ratios: of the CPU time of all threads,
of the first thread's (on idle cores about the time on the wall: the others have less to do), and of the time on the
wall, which says something on an idle machine only. `linear` (W2) and `cnn` (W1): 50 clients with 200 made-up pictures
of 28×28, batches of 64, one epoch, FedBuff with k = 10 and 20 clients at work.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from offbeat.client.data import ClientData
from offbeat.client.stack import StackTrainer
from offbeat.client.training import Trainer, Training
from offbeat.core.protocol import World
from offbeat.core.strategies import FedBuff
from offbeat.core.vector import Layout, flatten
from offbeat.engines.trace import Trace
from offbeat.engines.until import Until
from offbeat.engines.virtual import VirtualEngine
from offbeat.engines.workers import Worker
from offbeat.engines.workers.batched import Batched
from offbeat.engines.workers.inline import Inline
from offbeat.scenario.delays import Uniform
from offbeat.scenario.models import Cnn, Linear, Lstm, Mlp, Model
from offbeat.scenario.surroundings import SimulatedWorld

CLIENTS, EXAMPLES, CLASSES, BUFFER, AT_WORK = 50, 200, 10, 10, 20
PICTURES = (1, 28, 28)


@dataclass(frozen=True)
class Load:
    model: Model
    shape: tuple[int, ...]
    jobs: int
    training: Training = Training(lr=0.01, batch=64, epochs=1)


LOADS = {
    "linear": Load(Linear(), PICTURES, 400),
    "cnn": Load(Cnn(channels=(32, 64), kernel=5, padding="valid", hidden=(512,)), PICTURES, 60),
    "mlp": Load(Mlp(hidden=(64,)), PICTURES, 200),
    "lstm": Load(Lstm(hidden=32), (6, 9), 100),  # longer series are trained one by one
}


class Bench:
    def __init__(self, load: Load) -> None:
        self.load = load
        draws = torch.Generator().manual_seed(0)
        x = torch.randn(CLIENTS * EXAMPLES, *load.shape, generator=draws)
        y = torch.randint(0, CLASSES, (len(x),), generator=draws)
        rows = torch.arange(len(x)).split(EXAMPLES)
        self.pairs = [(x[part], y[part]) for part in rows]
        self.module = load.model.build(load.shape, CLASSES, seed=0)
        self.trainer = Trainer(self.module, ClientData.shared(x, y, rows), load.training)
        self.workers: dict[str, Callable[[], Worker]] = {
            "inline": lambda: Inline(self.trainer),
            "batched:1": lambda: Batched(StackTrainer(self.trainer)),
            "batched:2": lambda: Batched(StackTrainer(self.trainer, cores=2)),
        }

    def engine(self, worker: str) -> Tensor:
        counts = self.trainer.data.num_examples
        world = World(model=flatten(self.module), layout=Layout.of(self.module), clients=counts)
        surroundings = SimulatedWorld(delays=Uniform(low=10.0, high=100.0), counts=counts, seed=0)
        self.trace = Trace()
        strategy, until = FedBuff(k=BUFFER, concurrency=AT_WORK), Until(updates=self.load.jobs)
        made = VirtualEngine(strategy, world, surroundings, self.workers[worker](), until=until, trace=self.trace)
        return made.run().model

    def loop(self) -> None:
        """What one would write without a framework: load weights, train, read weights, average."""
        model, training = deepcopy(self.module), self.load.training
        weights, deltas = parameters_to_vector(model.parameters()).detach(), list[Tensor]()
        for job in range(self.load.jobs):
            x, y = self.pairs[job * 7 % CLIENTS]
            vector_to_parameters(weights.clone(), model.parameters())
            optimizer = torch.optim.SGD(model.parameters(), lr=training.lr)
            order = torch.randperm(len(x))
            for i in range(0, len(x), training.batch):
                batch = order[i : i + training.batch]
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
            deltas.append(parameters_to_vector(model.parameters()).detach() - weights)
            if len(deltas) == BUFFER:
                weights = weights + torch.stack(deltas).mean(0)
                deltas.clear()


CLOCKS = {"cpu": time.process_time, "first thread": time.thread_time, "wall": time.perf_counter}


def timed(work: Callable[[], object]) -> list[float]:
    began = [clock() for clock in CLOCKS.values()]
    work()
    return [clock() - before for clock, before in zip(CLOCKS.values(), began, strict=True)]


def measure(name: str, alternations: int) -> None:
    bench = Bench(LOADS[name])
    bench.loop()
    expected = bench.engine("inline")
    ratios: dict[str, list[list[float]]] = {worker: [] for worker in bench.workers}
    for worker in bench.workers:  # warm up, and see that they do the same
        torch.testing.assert_close(bench.engine(worker), expected, rtol=1e-4, atol=1e-5)
    alone = []
    for _ in range(alternations):
        for worker, found in ratios.items():
            loop = timed(bench.loop)
            taken = timed(partial(bench.engine, worker))
            found.append([a / b for a, b in zip(taken, loop, strict=True)])
            alone.append(loop[0] / bench.load.jobs)
    print(f"{name}: plain loop {1e3 * statistics.median(alone):.3f} ms of CPU a job; medians of {alternations} (range)")
    for worker, found in ratios.items():
        columns = dict(zip(CLOCKS, zip(*found, strict=True), strict=True))
        print(f"  {worker:10}", "  ".join(f"{clock} {described(values)}" for clock, values in columns.items()))


def described(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    )
    names = [name for name in sys.argv[1:] if name in LOADS] or list(LOADS)
    times = next((int(word) for word in sys.argv[1:] if word.isdigit()), 11)
    for name in names:
        measure(name, times)
