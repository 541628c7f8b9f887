"""Measure the cost of the virtual-time engine: event rate, memory of clients, overhead over a plain PyTorch loop.

    python bench/engine.py              all measurements
    python bench/engine.py rate         one of rate, memory, million, overhead

Ratios and memory carry over to other machines. Rates do not, so the machine is printed with them.
"""

from __future__ import annotations

import copy
import statistics
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

from measurement import (
    cpu_seconds,
    describe_machine,
    format_median,
    median_interval,
    peak_memory_mb,
    print_in_new_process,
    versions,
)
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
from workloads import plain_loop

LAYOUT = Layout((Slice("w", (10,), 0, 10, "param"),))
ALTERNATIONS = 31


def null_training(job: Job) -> Result:
    """Return the base model without training."""
    return Result(job.ticket, job.base, job.num_examples, 1)


class NullStack:
    """Stacked training of the worker `batched` that returns the base model of every job."""

    max_jobs = 1_000

    def train_many(self, jobs: Sequence[Job]) -> list[Result | Exception]:
        return [null_training(job) for job in jobs]

    def close(self) -> None:
        pass


def null_engine(
    clients: int, updates: int, trace: Trace, strategy: FedAsync, worker: Worker | None = None
) -> VirtualEngine:
    """Build an engine without training, for a model of 10 parameters."""
    counts = ExampleCounts.constant(clients, 10)
    world = World(model=torch.zeros(10), layout=LAYOUT, clients=counts)
    surroundings = SimulatedWorld(delays=Uniform(low=10.0, high=100.0), counts=counts, seed=0)
    worker = worker or Inline(null_training)
    return VirtualEngine(strategy, world, surroundings, worker, until=Until(updates=updates), trace=trace)


def run_by_hand(clients: int, updates: int, trace: Trace, strategy: FedAsync) -> None:
    """Write the rows that the engine would write, with one loop that calls strategy, gate and trace directly.

    An update takes two events, two actions, a drawn duration, the verdict of the gate, a heap operation, a job with its
    result, and three rows of the trace. Validation of actions, departures, losses, timers, evaluation, checkpoints
    and other workers are missing.
    """
    world = World(model=torch.zeros(10), layout=LAYOUT, clients=ExampleCounts.constant(clients, 10))
    delays, on_event, state = Uniform(low=10.0, high=100.0), strategy.on_event, strategy.init(world)
    means = [delays.mean_of(0, client) for client in range(clients)]
    sent, jobs, due = [0] * clients, dict[int, Job](), list[tuple[float, int, int]]()
    inspect = Gate(LAYOUT, world.model.dtype).inspect
    rows, commits = trace._rows, trace._commits  # appended to directly, which saves a call per row
    next_ticket, seq, version = count().__next__, 0, 0

    def dispatch(now: float, client: int) -> tuple[float, int, int]:
        nonlocal seq
        (action,) = on_event(state, ClientReady(now, client, 10))
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
        on_event(state, event)
        version += 1
        commits.append((seq + 1, now, version))
        seq += 2
        if version < updates:
            heapreplace(due, dispatch(now, client))
        if len(rows) >= BLOCK_ROWS:
            trace.flush(durable=False)
    trace.flush()


def rate(updates: int = 100_000, repeats: int = 7) -> None:
    """Measure updates per second without training: FedAsync, 10 parameters, 1,000 clients, gate and trace on.

    The workers `inline` and `batched` (results in blocks) alternate with a hand-written loop and with as many timeouts
    of 1,000 SimPy processes. The ratio to a SimPy timeout carries over to other machines.
    """

    def hand_written(trace: Trace) -> None:
        with one_thread(), infrequent_garbage_collection():  # like the engine
            run_by_hand(1_000, updates, trace, FedAsync())

    contenders: dict[str, Callable[[Trace], object]] = {
        "an update": lambda trace: null_engine(1_000, updates, trace, FedAsync()).run(),
        "an update, worker batched": lambda trace: null_engine(
            1_000, updates, trace, FedAsync(), Batched(NullStack())
        ).run(),
        "an update by hand": hand_written,
    }
    seconds: dict[str, list[float]] = {contender: [] for contender in contenders}
    wall_times, simpy_seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(repeats):
            for contender, work in contenders.items():
                trace = Trace(Path(folder) / f"{i}-{contender}.sqlite")
                began = time.perf_counter()
                seconds[contender].append(cpu_seconds(partial(work, trace)))
                if contender == "an update":
                    wall_times.append(time.perf_counter() - began)
                trace.close()
            simpy_seconds.append(cpu_seconds(partial(simpy_timeouts, 1_000, updates)))
    rates = [updates / taken for taken in seconds["an update"]]
    low, high = median_interval(rates)
    print(
        f"rate: {statistics.median(rates):,.0f} updates per second of CPU (median of {repeats}; 95 % interval "
        f"{low:,.0f} to {high:,.0f});"
        f" {updates / statistics.median(wall_times):,.0f} per second of wall time"
    )
    for contender, times in seconds.items():
        ratios = [taken / simpy for taken, simpy in zip(times, simpy_seconds, strict=True)]
        print(f"engine: {contender} / a bare timeout of SimPy = {format_median(ratios)}")


def simpy_timeouts(processes: int, number: int) -> None:
    """Simulate this many timeouts in processes that only wait."""
    environment = simpy.Environment()

    def wait(pause: float) -> Iterator[simpy.Event]:
        for _ in range(number // processes):
            yield environment.timeout(pause)

    for i in range(processes):
        environment.process(wait(10.0 + 90.0 * i / processes))
    environment.run()


def memory(clients: int = 1_000_000) -> None:
    """Measure the peak memory of a new process that simulates a million clients, 1,000 of them at work."""
    print(f"memory: {print_in_new_process('engine', f'simulate_clients({clients})')}")


def simulate_clients(clients: int) -> None:
    empty = peak_memory_mb()
    null_engine(clients, 10_000, Trace(), FedAsync(concurrency=1_000)).run()
    print(
        f"{peak_memory_mb():.0f} MB with {clients:,} clients, 1,000 at work (of which {empty:.0f} MB before the first "
        "client)"
    )


def million(clients: int = 1_000_000, updates: int = 3_000) -> None:
    """Measure time and peak memory of an experiment with a run folder.

    Clients draw 10 to 30 digits each; FedBuff, 1,000 clients at work.
    """
    print(f"million: {print_in_new_process('engine', f'run_experiment({clients}, {updates})')}")


def run_experiment(clients: int, updates: int) -> None:
    empty, began = peak_memory_mb(), time.perf_counter()
    experiment = Experiment(
        clients=clients,
        model=Linear(),
        partition=Draws(size=(10, 30), alpha=0.3),
        strategy=FedBuff(k=10, concurrency=min(clients, 1_000)),
        until=Until(updates=updates),
    )
    run = create_run(Path("run"), experiment)
    execute_run(run)
    seconds, summary = time.perf_counter() - began, run.summary()
    print(
        f"{peak_memory_mb():.0f} MB with {clients:,} clients of an experiment (of which {empty:.0f} MB before), "
        f"{summary.updates:,} updates in {seconds:.1f} s of wall time; acc {summary.metrics['acc']:.3f}"
    )


def overhead(jobs: int = 40) -> None:
    """Compare the CPU time of the engine with a plain PyTorch loop over the same jobs (digits CNN), alternating."""
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
        with_engine()  # warms up, and records which client trains when
        with_a_loop()
        ratios = [cpu_seconds(with_engine) / cpu_seconds(with_a_loop) for _ in range(ALTERNATIONS)]
    print(f"overhead: engine / plain loop = {format_median(ratios)}")


if __name__ == "__main__":
    print(f"{describe_machine()}; {versions('offbeat', 'torch', 'numpy', 'simpy')}")
    measures = {"rate": rate, "memory": memory, "million": million, "overhead": overhead}
    for name in sys.argv[1:] or measures:
        measures[name]()
