"""Measure time, memory and disk of methods that store a vector for every client, with a memory limit.

    python bench/stores.py ca2fl                              10,000 clients x 1 M parameters: 40 GB on disk
    python bench/stores.py mifa --clients 1000 --memory 500MB --folder /data/x

Clients do not train: their update is a fixed direction, scaled by their number. Gate, trace and checkpoints are on.
Every client sends one update, then some send another, so that stored rows change. Printed are CPU and wall time per
update, the cost of checkpoints, peak memory of the process, and the size of the files.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import torch

from measurement import describe_machine, peak_memory_mb, versions
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import World
from offbeat.core.snapshot import Put, Tree
from offbeat.core.strategies import CA2FL, Mifa
from offbeat.core.vector import Layout, Slice
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.client_store import ClientMemory
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.engine.virtual.virtual_engine import VirtualEngine
from offbeat.experiment.run.client_memory import parse_memory_limit
from offbeat.scenario.delays import Uniform
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.simulated_world import SimulatedWorld
from offbeat.workers.inline import Inline

# k=100, because every open job references the model it received, and there are fewer versions with large steps
METHODS = {"ca2fl": CA2FL(k=100), "mifa": Mifa(wait="no_wait")}


class DirectionTraining:
    """Training that costs one pass over memory; every client returns a different update."""

    def __init__(self, parameters: int) -> None:
        self.direction = torch.randn(parameters, generator=torch.Generator().manual_seed(0)).mul_(1e-3)

    def __call__(self, job: Job) -> Result:
        local = torch.add(job.base, self.direction, alpha=1 + job.client * 1e-4 + job.index)
        return Result(job.ticket, local, job.num_examples, 1)


class TimedCheckpoints(Checkpoints):
    """Checkpoints that print the time and disk space that each one takes."""

    def save(self, build: Callable[[Put], Tree]) -> None:
        before, began = _disk_usage(self.folder), time.perf_counter()
        super().save(build)
        seconds = time.perf_counter() - began
        print(f"checkpoint: {seconds:.1f} s, {(_disk_usage(self.folder) - before) / 1e9:+.2f} GB on disk", flush=True)


def build_engine(options: argparse.Namespace, updates: int) -> tuple[VirtualEngine, ClientMemory]:
    limit = parse_memory_limit(options.memory)
    memory = limit.open(options.folder / "checkpoint")
    counts = ExampleCounts.constant(options.clients, 10)
    layout = Layout((Slice("w", (options.parameters,), 0, options.parameters, "param"),))
    world = World(model=torch.zeros(options.parameters), layout=layout, clients=counts)
    engine = VirtualEngine(
        METHODS[options.method],
        replace(world, store=memory.store),
        SimulatedWorld(delays=Uniform(low=50.0, high=55.0), counts=counts, seed=0),
        Inline(DirectionTraining(options.parameters)),
        until=Until(updates=updates),
        trace=Trace(options.folder / "run.sqlite"),
        checkpoints=TimedCheckpoints(options.folder / "checkpoint", external=memory),
        checkpoint_every=options.every,
        evaluate_every=inf,
    )
    return engine, memory


def run_stage(options: argparse.Namespace, name: str, updates: int, resume: bool) -> None:
    """Run or resume until this number of updates and interrupt the run, which writes a checkpoint."""
    engine, memory = build_engine(options, updates + 1_000)  # the interrupt comes before this limit
    began = time.perf_counter()
    if resume:
        engine.restore()
        print(f"{name}: restored in {time.perf_counter() - began:.1f} s", flush=True)
    before = engine.coordinator.progress.updates
    wall, cpu = time.perf_counter(), time.process_time()
    while (ticket := engine.advance()) is not None:
        engine.provide(engine.worker.collect((ticket,)))
        if engine.coordinator.progress.updates >= updates:
            engine.interrupt = True
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    count = engine.coordinator.progress.updates - before
    outcome = engine.finish()
    engine.trace.close()
    print(
        f"{name}: {count:,} updates, {1e3 * wall / max(count, 1):.1f} ms wall time and {1e3 * cpu / max(count, 1):.1f} "
        f"ms CPU time each, server {outcome.server_seconds:.0f} s; memory for clients {memory.resident / 1e9:.2f} GB, "
        f"peak memory {peak_memory_mb() / 1024:.2f} GiB; "
        f"on disk {_disk_usage(options.folder / 'checkpoint') / 1e9:.1f} GB",
        flush=True,
    )
    memory.close()
    del engine, memory
    gc.collect()  # frees the memory before the next stage


def _disk_usage(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.glob("*")) if folder.is_dir() else 0


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measure methods that store a vector for every client.")
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--again", type=int, help="second updates per stage [default: a tenth of the clients]")
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--folder", type=Path, default=Path("bench-stores"))
    parser.add_argument(
        "--every", type=float, default=1e9, help="seconds between checkpoints, in addition to the one of each stage"
    )
    parser.add_argument("--keep", action="store_true", help="do not delete the folder at the end")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"{describe_machine()}; {versions('torch')}; {options}")
    options.folder.mkdir(parents=True)
    again = options.clients // 10 if options.again is None else options.again
    try:
        run_stage(options, "first updates", options.clients, resume=False)
        run_stage(options, "second updates", options.clients + again, resume=True)
        run_stage(options, "second updates", options.clients + 2 * again, resume=True)
    finally:
        if not options.keep:
            shutil.rmtree(options.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
