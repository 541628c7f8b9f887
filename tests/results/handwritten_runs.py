"""Run folders with handwritten traces for tests of figures and pages: without training any size is fast."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from offbeat.core.strategies import REGISTRY
from offbeat.engine.trace import Trace
from offbeat.engine.until import Target, Until
from offbeat.experiment.run import identity
from offbeat.experiment.run.execution import Run, create_run
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.models import Linear
from offbeat.scenario.partition import Iid

END, POINTS = 100.0, 51
WORLD = Experiment(name="made up", clients=4, model=Linear(), partition=Iid(), until=Until(seconds=END))


@cache
def _identity() -> identity.Identity:
    """Compute the identity of the data that all runs share."""
    return identity.compute_identity(WORLD)


def empty_run(path: Path, strategy: str = "fedavg", seed: int = 0, **changes: object) -> tuple[Run, Trace]:
    """Create a run folder with an empty trace."""
    experiment = replace(WORLD, strategy=REGISTRY[strategy](), seed=seed, **changes)
    run = create_run(path, experiment, world=_identity())
    return run, Trace(run.trace_file)


def write_run(
    path: Path,
    strategy: str = "fedavg",
    seed: int = 0,
    final: float = 0.9,
    ended: str | None = "seconds",
    **changes: object,
) -> Run:
    """Create a run in which client c takes 4 + c seconds per job of ten steps and starts the next at once.

    Each transfer has 100 bytes, and the accuracy rises from 0.1 to `final` in the first tenth of the run.
    """
    run, trace = empty_run(path, strategy, seed, **changes)
    clients = run.experiment().clients
    ticket, version, updates = 0, 0, 0
    due = [(4.0 + c, c) for c in range(clients)]
    open_: dict[int, tuple[int, int]] = {}
    for client in range(clients):
        trace.add(0.0, "dispatch", 0, client, ticket, size=100)
        open_[client] = ticket, 0
        ticket += 1
    for point in range(POINTS):
        now = END * point / (POINTS - 1)
        while due and min(due)[0] <= now:
            at, client = min(due)
            due.remove((at, client))
            mine, base = open_[client]
            trace.add(at, "arrive", version, client, mine, base, 10, 5, 100)
            version, updates = version + 1, updates + 1
            trace.commit(at, version)
            trace.add(at, "dispatch", version, client, ticket, size=100)
            open_[client] = ticket, version
            ticket += 1
            due.append((at + 4.0 + client, client))
        risen = min(1.0, now / (END / 10))
        trace.metrics(now, version, updates, {"loss": 2.0 - risen, "acc": 0.1 + (final - 0.1) * risen})
    trace.clients(END, version, {c: {"acc": final} for c in range(clients)})
    if ended is not None:
        trace.add(END, "stop", version, detail=ended)
    trace.set_facts({"worker": "inline", "surveyed": "training examples", "data": "numbers of nobody"})
    trace.close()
    return run


TARGET = Target("acc", 0.85)
