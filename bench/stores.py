"""What a server keeps for each client beyond memory: time, memory and disk of methods with a vector for every client.

    python bench/stores.py ca2fl                              10,000 clients x 1 M parameters: 40 GB on disk
    python bench/stores.py mifa --clients 1000 --memory 500MB --folder /data/x

Null training (a client's answer is a fixed direction, scaled by its number), gate, trace and checkpoints on. Every
client answers once, then a part of them again, so that rows change. It prints CPU and wall time an update, what
checkpoints cost, peak memory of the process, and the size of the files.
"""

from __future__ import annotations

import argparse
import gc
import platform
import resource
import shutil
import time
from dataclasses import replace
from math import inf
from pathlib import Path

import torch

from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import World
from offbeat.core.strategies import CA2FL, Mifa
from offbeat.core.vector import Layout, Slice
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.client_store import ClientMemory
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.engine.virtual.virtual_engine import VirtualEngine
from offbeat.experiment.run.client_memory import parse
from offbeat.scenario.delays import Uniform
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.simulated_world import SimulatedWorld
from offbeat.workers.inline import Inline

# a step of 100 updates: every open job holds the model it was sent, and these are fewer then
METHODS = {"ca2fl": CA2FL(k=100), "mifa": Mifa(wait="no_wait")}


class Directions:
    """Training that costs one pass: nobody's answer equals another's."""

    def __init__(self, parameters: int) -> None:
        self.direction = torch.randn(parameters, generator=torch.Generator().manual_seed(0)).mul_(1e-3)

    def __call__(self, job: Job) -> Result:
        local = torch.add(job.base, self.direction, alpha=1 + job.client * 1e-4 + job.index)
        return Result(job.ticket, local, job.num_examples, 1)


class Timed(Checkpoints):
    """Tells what each checkpoint cost."""

    def save(self, build) -> None:  # type: ignore[no-untyped-def]
        before, began = _size(self.folder), time.perf_counter()
        super().save(build)
        took = time.perf_counter() - began
        print(f"checkpoint: {took:.1f} s, {(_size(self.folder) - before) / 1e9:+.2f} GB on disk", flush=True)


def engine(given: argparse.Namespace, updates: int) -> tuple[VirtualEngine, ClientMemory]:
    limit = parse(given.memory)
    memory = limit.make(given.folder / "checkpoint")
    counts = ExampleCounts.constant(given.clients, 10)
    layout = Layout((Slice("w", (given.parameters,), 0, given.parameters, "param"),))
    world = World(model=torch.zeros(given.parameters), layout=layout, clients=counts)
    made = VirtualEngine(
        METHODS[given.method],
        replace(world, store=memory.store),
        SimulatedWorld(delays=Uniform(low=50.0, high=55.0), counts=counts, seed=0),
        Inline(Directions(given.parameters)),
        until=Until(updates=updates),
        trace=Trace(given.folder / "run.sqlite"),
        checkpoints=Timed(given.folder / "checkpoint", beside=memory),
        checkpoint_every=given.every,
        every=inf,
    )
    return made, memory


def stage(given: argparse.Namespace, name: str, updates: int, resume: bool) -> None:
    """From where the folder is to so many updates, with a checkpoint at the end as if it was interrupted."""
    made, memory = engine(given, updates + 1_000)  # it is interrupted before
    began = time.perf_counter()
    if resume:
        made.restore()
        print(f"{name}: read and checked in {time.perf_counter() - began:.1f} s", flush=True)
    before = made.coordinator.progress.updates
    wall, cpu = time.perf_counter(), time.process_time()
    while (ticket := made.advance()) is not None:
        made.provide(made.worker.collect((ticket,)))
        if made.coordinator.progress.updates >= updates:
            made.interrupt = True
    done = made.coordinator.progress.updates - before
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    outcome = made.finish()
    made.trace.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{name}: {done:,} updates, {1e3 * wall / max(done, 1):.1f} ms of wall and {1e3 * cpu / max(done, 1):.1f} ms "
        f"of CPU each, server {outcome.server_seconds:.0f} s; in memory {memory.resident / 1e9:.2f} GB for clients, "
        f"{peak:.2f} GiB at most in all; on disk {_size(given.folder / 'checkpoint') / 1e9:.1f} GB",
        flush=True,
    )
    memory.close()
    del made, memory
    gc.collect()  # the next stage is to begin without it


def _size(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.glob("*")) if folder.is_dir() else 0


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Methods that keep a vector for every client, beyond memory.")
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--again", type=int, help="updates after everybody's first [default: a tenth]")
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--folder", type=Path, default=Path("bench-stores"))
    parser.add_argument(
        "--every", type=float, default=1e9, help="seconds between checkpoints, beside the one of a stage"
    )
    parser.add_argument("--keep", action="store_true", help="leave the folder there")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}; {given}")
    given.folder.mkdir(parents=True)
    again = given.clients // 10 if given.again is None else given.again
    try:
        stage(given, "first answers", given.clients, resume=False)
        stage(given, "resumed, again", given.clients + again, resume=True)
        stage(given, "resumed, again", given.clients + 2 * again, resume=True)
    finally:
        if not given.keep:
            shutil.rmtree(given.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
