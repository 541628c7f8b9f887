"""What the virtual-time engine costs: event rate, memory of idle clients, of an experiment with a million of them,
overhead over a plain PyTorch loop.

    python bench/engine.py              all of it
    python bench/engine.py rate         one of rate, memory, million, overhead

Ratios and memory carry over to other machines; rates do not, so they are printed with the machine's.
"""

from __future__ import annotations

import copy
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappush, heapreplace
from itertools import count
from pathlib import Path

import simpy
import torch

from machine import machine, versions
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import ClientReady, UpdateArrived, World
from offbeat.core.strategies import FedAsync, FedBuff
from offbeat.core.threads import one_thread
from offbeat.core.vector import Layout, Slice, flatten
from offbeat.engine.gate import Gate
from offbeat.engine.process_memory import infrequent_garbage_collection
from offbeat.engine.trace import Trace
from offbeat.engine.trace_file import BLOCK_ROWS
from offbeat.engine.until import Until
from offbeat.engine.virtual.virtual_engine import VirtualEngine
from offbeat.engine.worker import Worker
from offbeat.experiment.run.execution import create_run, execute_run
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.data import load
from offbeat.scenario.delays import Uniform
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.models import Cnn, Linear
from offbeat.scenario.partition import Dirichlet, Draws
from offbeat.scenario.simulated_world import SimulatedWorld
from offbeat.training.client_data import ClientData
from offbeat.training.trainer import Trainer, Training
from offbeat.workers.batched import Batched
from offbeat.workers.inline import Inline
from plain import cpu, interval, plain_loop, told

TEN = Layout((Slice("w", (10,), 0, 10, "param"),))
ALTERNATIONS = 31


def null_training(job: Job) -> Result:
    return Result(job.ticket, job.base, job.num_examples, 1)


class NullStack:
    """Trains nothing, for all who wait at once: what the worker `batched` calls, which trains models so small."""

    most = 1_000

    def attempt(self, jobs: Sequence[Job]) -> list[Result | Exception]:
        return [null_training(job) for job in jobs]

    def close(self) -> None:
        pass


def null_engine(
    clients: int, updates: int, trace: Trace, strategy: FedAsync, worker: Worker | None = None
) -> VirtualEngine:
    counts = ExampleCounts.constant(clients, 10)
    world = World(model=torch.zeros(10), layout=TEN, clients=counts)
    surroundings = SimulatedWorld(delays=Uniform(low=10.0, high=100.0), counts=counts, seed=0)
    worker = worker or Inline(null_training)
    return VirtualEngine(strategy, world, surroundings, worker, until=Until(updates=updates), trace=trace)


def by_hand(clients: int, updates: int, trace: Trace, strategy: FedAsync) -> None:
    """The same rows without an engine: strategy, gate and trace, called by one loop that knows all the answers.

    Two events and two actions an update, the strategy between them, a duration drawn, the gate's verdict, a heap, a job
    and its result, three rows of the trace. Nothing else is checked or could go otherwise: no legality of answers,
    nobody who leaves or is lost, no timers, evaluation, checkpoints, other workers or worlds.
    """
    world = World(model=torch.zeros(10), layout=TEN, clients=ExampleCounts.constant(clients, 10))
    delays, tell, state = Uniform(low=10.0, high=100.0), strategy.on_event, strategy.init(world)
    means = [delays.mean_of(0, client) for client in range(clients)]
    sent, jobs, due = [0] * clients, dict[int, Job](), list[tuple[float, int, int]]()
    inspect = Gate(TEN, world.model.dtype).inspect
    rows, commits = trace._rows, trace._commits  # filled here: `add` is a call for each
    next_ticket, seq, version = count().__next__, 0, 0

    def dispatch(now: float, client: int) -> tuple[float, int, int]:
        nonlocal seq
        (action,) = tell(state, ClientReady(now, client, 10))
        ticket, index = next_ticket(), sent[client]
        sent[client] = index + 1
        jobs[ticket] = Job(ticket, client, index, action.model, version, action.work, 10, {}, 0, now)
        rows.append((seq, now, "dispatch", client, ticket, version, None, None, None, 40, None))
        seq += 1
        return now + means[client] * delays.factor(0, client, index), client, ticket

    for client in range(clients):
        heappush(due, dispatch(0.0, client))
    for _ in range(updates):
        now, client, ticket = due[0]
        job = jobs[ticket]
        (result,) = inspect([null_training(job)], jobs)
        assert type(result) is Result
        del jobs[ticket]
        rows.append((seq, now, "arrive", client, ticket, version, job.base_version, result.steps, 10, 40, None))
        event = UpdateArrived(now, client, ticket, job.base_version, job.base, result.local, 10, 1, job.started, {})
        tell(state, event)
        version += 1
        commits.append((seq + 1, now, version))
        seq += 2
        if version < updates:
            heapreplace(due, dispatch(now, client))
        if len(rows) >= BLOCK_ROWS:
            trace.flush(durable=False)
    trace.flush()


def rate(updates: int = 100_000, repeats: int = 7) -> None:
    """Updates a second with null training: FedAsync, 10 parameters, 1,000 clients, gate and trace on; with `inline`,
    and with `batched`, whose answers come in blocks. In turn with them the same rows by hand, and as many bare timeouts
    of SimPy by 1,000 processes: what an update costs in these carries over to other machines.
    """

    def alone(trace: Trace) -> None:
        with one_thread(), infrequent_garbage_collection():  # as the engine runs
            by_hand(1_000, updates, trace, FedAsync())

    contenders: dict[str, Callable[[Trace], object]] = {
        "an update": lambda trace: null_engine(1_000, updates, trace, FedAsync()).run(),
        "an update, worker batched": lambda trace: null_engine(
            1_000, updates, trace, FedAsync(), Batched(NullStack())
        ).run(),
        "an update by hand": alone,
    }
    spent: dict[str, list[float]] = {who: [] for who in contenders}
    walls, timeout = [], []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(repeats):
            for who, work in contenders.items():
                trace = Trace(Path(folder) / f"{i}-{who}.sqlite")
                began = time.perf_counter()
                spent[who].append(cpu(partial(work, trace)))
                if who == "an update":
                    walls.append(time.perf_counter() - began)
                trace.close()
            timeout.append(cpu(partial(timeouts, 1_000, updates)))
    rates = [updates / took for took in spent["an update"]]
    low, high = interval(rates)
    print(
        f"rate: {statistics.median(rates):,.0f} updates per second of CPU (median of {repeats}; 95 % interval "
        f"{low:,.0f} to {high:,.0f});"
        f" {updates / statistics.median(walls):,.0f} by the clock on the wall"
    )
    for who, took in spent.items():
        ratios = [mine / simpys for mine, simpys in zip(took, timeout, strict=True)]
        print(f"engine: {who} / a bare timeout of SimPy = {told(ratios)}")


def timeouts(processes: int, number: int) -> None:
    """So many timeouts, by processes that do nothing but wait."""
    environment = simpy.Environment()

    def wait(pause: float) -> Iterator[simpy.Event]:
        for _ in range(number // processes):
            yield environment.timeout(pause)

    for i in range(processes):
        environment.process(wait(10.0 + 90.0 * i / processes))
    environment.run()


def memory(clients: int = 1_000_000) -> None:
    """Peak memory of a fresh process that holds a million clients, 1,000 of them in flight."""
    print(f"memory: {fresh(f'hold({clients})')}")


def fresh(call: str) -> str:
    """What a function of this file prints in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent.resolve())!r}); import engine as b; b.{call}"
        return subprocess.run(
            [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()


def hold(clients: int) -> None:
    empty = peak_mb()
    null_engine(clients, 10_000, Trace(), FedAsync(concurrency=1_000)).run()
    print(
        f"{peak_mb():.0f} MB in all with {clients:,} clients, 1,000 in flight ({empty:.0f} MB of it before the first "
        "client)"
    )


def million(clients: int = 1_000_000, updates: int = 3_000) -> None:
    """Time and peak memory of an experiment: clients draw 10 to 30 digits each, FedBuff with 1,000 of them in
    flight, a run folder.
    """
    print(f"million: {fresh(f'experiment({clients}, {updates})')}")


def experiment(clients: int, updates: int) -> None:
    empty, began = peak_mb(), time.perf_counter()
    wanted = Experiment(
        clients=clients,
        model=Linear(),
        partition=Draws(size=(10, 30), alpha=0.3),
        strategy=FedBuff(k=10, concurrency=min(clients, 1_000)),
        until=Until(updates=updates),
    )
    run = create_run(Path("run"), wanted)
    execute_run(run)
    took, found = time.perf_counter() - began, run.summary()
    print(
        f"{peak_mb():.0f} MB in all with {clients:,} clients of an experiment ({empty:.0f} MB of it before), "
        f"{found.updates:,} updates"
        f" in {took:.1f} s by the clock on the wall; acc {found.metrics['acc']:.3f}"
    )


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def overhead(jobs: int = 40) -> None:
    """CPU time of the engine over a plain PyTorch loop that does the same local trainings, digits CNN, alternating."""
    data = load("digits")
    rows = Dirichlet(alpha=0.3).split(data.y_train, 20, seed=0)
    clients = ClientData.shared(data.x_train, data.y_train, rows)
    module = Cnn().build(data.input_shape, 10, seed=0)
    training = Training(lr=0.05, batch=32, epochs=2)
    trainer = Trainer(module, clients, training)
    counts = clients.num_examples
    world = World(model=flatten(module), layout=Layout.of(module), clients=counts)
    surroundings = SimulatedWorld(delays=Uniform(low=10.0, high=100.0), counts=counts, seed=0)
    order: list[int] = []

    def with_engine() -> None:
        trace = Trace(Path(folder) / f"{time.monotonic_ns()}.sqlite")
        engine = VirtualEngine(
            FedAsync(rho=0.0), world, surroundings, Inline(trainer), until=Until(updates=jobs), trace=trace
        )
        engine.run()
        order[:] = [client for (client,) in trace.rows("SELECT client FROM trace WHERE kind = 'arrive' ORDER BY seq")]
        trace.close()

    def with_a_loop() -> None:
        plain_loop(copy.deepcopy(module), [(data.x_train[rows[c]], data.y_train[rows[c]]) for c in order], training)

    with tempfile.TemporaryDirectory() as folder:
        torch.set_num_threads(1)
        with_engine()  # warm up both, and learn who trains
        with_a_loop()
        ratios = [cpu(with_engine) / cpu(with_a_loop) for _ in range(ALTERNATIONS)]
    print(f"overhead: engine / plain loop = {told(ratios)}")


if __name__ == "__main__":
    print(f"{machine()}; {versions('offbeat', 'torch', 'numpy', 'simpy')}")
    measures = {"rate": rate, "memory": memory, "million": million, "overhead": overhead}
    for name in sys.argv[1:] or measures:
        measures[name]()
