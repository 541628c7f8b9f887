"""A small world for engine tests: durations by the script, training that adds one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import torch

from offbeat.core.client_environment import JobTiming
from offbeat.core.jobs import Job, Result
from offbeat.core.protocol import (
    Action,
    ClientReady,
    Commit,
    Dispatch,
    Event,
    Layout,
    LocalWork,
    Slice,
    UpdateArrived,
    World,
)
from offbeat.engine.client_store import ClientMemory
from offbeat.engine.until import Until, parse_until
from offbeat.engine.virtual.virtual_engine import VirtualEngine
from offbeat.engine.worker import Worker
from offbeat.scenario.faults import result_modifier
from offbeat.scenario.simulated_world import SimulatedWorld
from offbeat.testing import with_probe
from offbeat.workers.inline import Inline
from offbeat.workers.wrappers import FaultyWorker

LAYOUT = Layout((Slice("w", (2,), 0, 2, "param"),))
LAYERED = Layout((Slice("body.weight", (2, 1), 0, 2, "param"), Slice("head.weight", (3, 2), 2, 8, "param")))


@dataclass
class Surroundings:
    """Client k's jobs take durations[k] seconds; crashes and absences as listed."""

    durations: dict[int, float]
    crashes: set[tuple[int, int]] = field(default_factory=set)  # (client, n-th job)
    slow: dict[tuple[int, int], float] = field(default_factory=dict)  # jobs that take another time than expected
    away: dict[int, list[tuple[float, float]]] = field(default_factory=dict)  # client -> [from, to)

    def time_job(self, client: int, index: int, work: LocalWork, num_examples: int, started: float) -> JobTiming:
        expected = self.durations[client]
        return JobTiming(self.slow.get((client, index), expected), expected, (client, index) in self.crashes)

    def next_available(self, client: int, now: float) -> float:
        for start, end in self.away.get(client, []):
            if start <= now < end:
                return end
        return now

    def next_departure(self, client: int, now: float) -> float:
        return min((start for start, _ in self.away.get(client, []) if start > now), default=inf)

    def num_examples(self, client: int, index: int, now: float) -> int:
        return 10


def add_one(job: Job) -> Result:
    return Result(job.ticket, job.base + 1, job.num_examples, steps=1)


@dataclass
class State:
    model: torch.Tensor
    version: int


@dataclass(frozen=True)
class Eager:
    """Dispatch to whoever is ready, take over what arrives; tells what it saw."""

    seen: list[tuple[Any, ...]] = field(default_factory=list)
    answer: Callable[[Any, Event], list[Action] | None] | None = None

    def init(self, world: World) -> State:
        return State(world.model, 0)

    def on_event(self, state: State, event: Event) -> list[Action]:
        fields = [getattr(event, name) for name in ("now", "client", "ticket", "key") if hasattr(event, name)]
        self.seen.append((type(event).__name__, *fields))
        if self.answer is not None and (given := self.answer(state, event)) is not None:
            return given
        match event:
            case ClientReady():
                return [Dispatch(event.client, state.model)]
            case UpdateArrived():
                state.model, state.version = event.local, state.version + 1
                return [Commit(event.local)]
        return []


def when(kind: type, answer: Callable[[Any, Any], list[Action]]) -> Eager:
    """Return a strategy that answers events of this kind otherwise."""
    return Eager(answer=lambda state, event: answer(state, event) if isinstance(event, kind) else None)


def first_weight(model: torch.Tensor) -> dict[str, float]:
    """Evaluate a model by its first entry."""
    return {"acc": float(model[0])}


def send_nan(job: Job) -> Result:
    return Result(job.ticket, torch.full_like(job.base, float("nan")), 10, 1)


def make_engine(
    strategy: Any,
    surroundings: Surroundings | SimulatedWorld | dict[int, float],
    *,
    until: Until | str,
    train: Any = add_one,
    layout: Layout = LAYOUT,
    world: World | None = None,
    worker: Worker | None = None,
    memory: ClientMemory | None = None,
    **settings: Any,
) -> VirtualEngine:
    surroundings = Surroundings(surroundings) if isinstance(surroundings, dict) else surroundings
    clients = dict.fromkeys(
        surroundings.counts if isinstance(surroundings, SimulatedWorld) else surroundings.durations, 10
    )
    world = world or with_probe(World(model=torch.zeros(layout.size), layout=layout, clients=clients), strategy)
    if memory is not None:
        world = replace(world, store=memory.store)
    worker = worker or Inline(train)
    if spoil := result_modifier(getattr(surroundings, "faults", ()), layout):
        worker = FaultyWorker(worker, spoil)
    limits = parse_until(until) if isinstance(until, str) else until
    return VirtualEngine(strategy, world, surroundings, worker, until=limits, **settings)
