"""A run folder served to sites: opened or gone on with, over whatever carries messages, to its end.

A live run's folder has two things more than a simulation's: sites.json, who is who, and record/, what was told since
the last checkpoint.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from offbeat.core.errors import ConfigError, OffbeatError
from offbeat.core.jobs import Job
from offbeat.core.protocol import SetTimer, World
from offbeat.core.strategy_contract import contract_of
from offbeat.core.vector import Binding, Layout, flatten
from offbeat.deploy import message_codec, rule_codec
from offbeat.deploy.replay_scenario import OWN_FILE
from offbeat.deploy.site_file import Opened, OwnGround
from offbeat.engine.checkpoint import Checkpoints, write_whole
from offbeat.engine.coordinator import Coordinator
from offbeat.engine.gate import Gate
from offbeat.engine.live.connections import Patience
from offbeat.engine.live.journal import Record
from offbeat.engine.live.live_engine import LiveEngine
from offbeat.engine.live.site_ids import Roster
from offbeat.engine.live.transport import Assignment, Heard, Order, Transport
from offbeat.engine.progress import Outcome
from offbeat.engine.trace import Trace
from offbeat.engine.virtual.virtual_engine import Watch
from offbeat.experiment import build, model_card
from offbeat.experiment.run import identity, run_lock
from offbeat.experiment.run.execution import Run, conclude, interruptible, resumable, seconds_so_far
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment, is_pooled
from offbeat.experiment.speed_groups import ON_TEST
from offbeat.metrics.trace_summary import SERVED
from offbeat.training.evaluation import Evaluator

SITES, RECORD, NUMBER = "sites.json", "record", "run-id"
FEW = 4  # sites that a strategy is tried with
POINTS = 50  # evaluations in a run of known length
EVERY = 60.0  # seconds between them otherwise

Encode = Callable[[Order], bytes]
Decode = Callable[[bytes, int], Heard]
Open = Callable[[bytes, Encode, Decode], Transport]  # given the greeting, and how messages are written and read


@dataclass(frozen=True)
class Terms:
    """How a run is served; nothing of it is part of what the run is."""

    min_sites: int = 1
    full_record: bool = False
    compression: str = "none"
    checkpoint_every: float = 30.0
    patience: Patience = Patience()
    model: Path | None = None  # a site's file: its model, instead of the experiment's, and no data is needed here


@dataclass(frozen=True)
class Ground:
    """What a server has: a model, and perhaps test examples."""

    module: nn.Module
    world: World
    evaluator: Evaluator | None
    facts: Mapping[str, str] = field(default_factory=dict)  # about the model

    def state_dict(self, model: Tensor) -> dict[str, Tensor]:
        binding = Binding(deepcopy(self.module))
        with torch.no_grad():
            binding.put(model)
        return {name: t.detach().clone().contiguous() for name, t in binding.module.state_dict().items()}


def serve_run(run: Run, open_transport: Open, terms: Terms = Terms(), watch: Watch | None = None) -> Outcome | None:
    """To the end, from the newest checkpoint and the record if there are such; None if it was complete already."""
    run.experiment()
    with run_lock.alone(run.folder):
        if run.complete:
            return None
        run_lock.sweep(run.folder)
        experiment = run.runnable()
        identity.check(run.folder, identity.read(run.world_file), run.world(experiment))
        ground = _ground(experiment, terms.model)
        trace, began = Trace(run.trace_file), time.monotonic()
        record = Record(run.folder / RECORD, full=terms.full_record)
        try:
            with resumable():
                engine = _engine(run, experiment, ground, trace, record, open_transport, terms, watch)
                with interruptible([engine]):
                    before = seconds_so_far(trace)
                    served = "live" if terms.model is None else OWN_FILE
                    evaluated = "sites" if ground.evaluator is None else "test"
                    trace.set_facts({**ground.facts, SERVED: served, "evaluated": evaluated, "surveyed": ON_TEST})
                    outcome = engine.run()
                    conclude(run, trace, outcome, before + time.monotonic() - began, ground)
            if run.complete and not terms.full_record:
                record.clear()
            return outcome
        finally:
            trace.abandon()
            record.close()


def refuse_unservable(experiment: Experiment, file: Path | None = None) -> None:
    """What cannot be built, or whose first orders cannot be sent to sites: said before anything is started."""
    world = _ground(experiment, file).world
    try:
        for job in _first_jobs(Coordinator(experiment.strategy, world)):
            message_codec.encode(Assignment.of(job, None))
    except message_codec.WireError as error:
        raise ConfigError(f"this strategy cannot be served: {error}") from None


def _first_jobs(run: Coordinator) -> Iterator[Job]:
    """What a few sites would be sent that come at once, and when the timers fire that are set then."""
    orders = run.begin(0.0)
    for client in range(FEW):
        orders += run.joined(0.0, client, 10)
    timers = {order.key: order.at for order in orders if isinstance(order, SetTimer)}
    for key, at in sorted(timers.items(), key=lambda timer: timer[1]):
        orders += run.fired(at, key)
    return (order for order in orders if isinstance(order, Job))


def run_id(folder: Path) -> str:
    """Drawn once: what sites keep is of this run and of no other."""
    path = folder / NUMBER
    with suppress(FileNotFoundError):
        if known := path.read_text(encoding="ascii").strip():
            return known
    write_whole(path, secrets.token_hex(8).encode())
    return path.read_text(encoding="ascii").strip()


def _engine(
    run: Run,
    experiment: Experiment,
    ground: Ground,
    trace: Trace,
    record: Record,
    open_transport: Open,
    terms: Terms,
    watch: Watch | None,
) -> LiveEngine:
    world, number = ground.world, run_id(run.folder)
    layout, code = (
        rule_codec.layout_digest(world.layout, world.model.dtype),
        rule_codec.code_digest(experiment.strategy),
    )
    greeting = message_codec.Greeting(number, experiment_files.dump(experiment), layout, terms.compression)
    limit = message_codec.room(world.model)
    held: list[LiveEngine] = []

    def base_of(ticket: int) -> Tensor | None:
        job = held[0].coordinator.ledger.open.get(ticket) if held else None
        return None if job is None else job.base

    def read(data: bytes, address: int) -> Heard:
        message = message_codec.decode(data, address, limit, run=number, base_of=base_of)
        assert not isinstance(message, message_codec.Order)
        return message

    transport = open_transport(
        message_codec.encode(greeting, number), lambda order: message_codec.encode(order, number), read
    )
    until = experiment.until
    if ground.evaluator is not None:
        until = build.towards(until, ground.evaluator.metrics)
    engine = LiveEngine(
        experiment.strategy,
        world,
        transport,
        until=until,
        layout=layout,
        code=code,
        evaluate=ground.evaluator,
        every=experiment.evaluate_every or (until.seconds / POINTS if until.seconds else EVERY),
        gate=Gate(world.layout, world.model.dtype, experiment.max_norm, experiment.training.bn == "local"),
        trace=trace,
        roster=Roster.at(run.folder / SITES),
        record=record,
        checkpoints=Checkpoints(run.folder / "checkpoint"),
        checkpoint_every=terms.checkpoint_every,
        min_sites=terms.min_sites,
        patience=terms.patience,
        watch=watch,
    )
    held.append(engine)
    try:
        engine.restore()
    except BaseException:
        transport.close()
        raise
    return engine


def _ground(experiment: Experiment, file: Path | None) -> Ground:
    if is_pooled(experiment.strategy):
        raise ConfigError("this strategy pools all data in one place: it cannot be served to sites")
    if file is None:
        made = build.setup(experiment)
        return Ground(
            made.module, replace(made.world, clients={}), made.evaluator, {model_card.FACT: made.facts[model_card.FACT]}
        )
    opened = Opened(file)
    try:
        own = OwnGround(opened, experiment)
    except OffbeatError as error:
        if contract_of(experiment.strategy).sketcher is not None:
            raise ConfigError(f"this strategy needs to know what an example looks like: {error}") from None
        own = None
    module = opened.model()
    layout, model = Layout.of(module), flatten(module)
    world = World(
        model=model, layout=layout, clients={}, seed=experiment.seed_of("batches"), probe=own.probe if own else None
    )
    return Ground(module, world, own.tested if own else None)
