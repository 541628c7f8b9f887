"""Serve a run folder to sites over any transport, from the start or the last checkpoint to the end.

The folder of a live run has two entries more than that of a simulation: sites.json maps site names to clients, and
record/ holds the messages received since the last checkpoint.
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
from offbeat.deploy.replay_scenario import SITE_FILE_MODEL
from offbeat.deploy.site_data import LoadedSiteFile, SiteFileTraining
from offbeat.deploy.tensor_codec import WireError
from offbeat.engine import Checkpoints, Coordinator, Gate, Outcome, Trace, write_atomically
from offbeat.engine.live import (
    JobMessage,
    Journal,
    LiveEngine,
    ServerMessage,
    SiteIds,
    SiteMessage,
    Timeouts,
    Transport,
)
from offbeat.engine.virtual import Watch
from offbeat.experiment import FACT, ON_TEST, build
from offbeat.experiment.run import (
    Run,
    earlier_wall_seconds,
    errors_as_unfinished,
    exclusive_lock,
    interrupt_on_signals,
    remove_temporary_files,
    store_results,
)
from offbeat.experiment.spec import Experiment, is_pooled, to_yaml
from offbeat.metrics import SERVED
from offbeat.training import Evaluator

SITES_FILE, RECORD_FOLDER, RUN_ID_FILE = "sites.json", "record", "run-id"
TRIAL_SITES = 4  # a strategy is tried with this number of sites
EVALUATIONS = 50  # in a run of known length
EVALUATION_SECONDS = 60.0  # between two evaluations otherwise

Encode = Callable[[ServerMessage], bytes]
Decode = Callable[[bytes, int], SiteMessage]
# takes the greeting and the functions that write and read messages
OpenTransport = Callable[[bytes, Encode, Decode], Transport]


@dataclass(frozen=True)
class ServeOptions:
    """Options of serving that are not part of the experiment."""

    min_sites: int = 1
    full_record: bool = False
    compression: str = "none"
    checkpoint_every: float = 30.0
    patience: Timeouts = Timeouts()
    model: Path | None = None  # a site's file whose model replaces the experiment's; no data is needed then


@dataclass(frozen=True)
class ServerModel:
    """The model of a server, and an evaluator if it has test examples."""

    module: nn.Module
    world: World
    evaluator: Evaluator | None
    facts: Mapping[str, str] = field(default_factory=dict)  # about the model

    def state_dict(self, model: Tensor) -> dict[str, Tensor]:
        """Convert a vector to a state dict of the module."""
        binding = Binding(deepcopy(self.module))
        with torch.no_grad():
            binding.load(model)
        return {name: t.detach().clone().contiguous() for name, t in binding.module.state_dict().items()}


def serve_run(
    run: Run, open_transport: OpenTransport, options: ServeOptions = ServeOptions(), watch: Watch | None = None
) -> Outcome | None:
    """Serve to the end, from the newest checkpoint and record if they exist; return None if the run is complete."""
    run.experiment()
    with exclusive_lock(run.folder):
        if run.complete:
            return None
        remove_temporary_files(run.folder)
        experiment = run.runnable_experiment()
        run.check_identity(experiment)
        model = load_model(experiment, options.model)
        trace, began = Trace(run.trace_file), time.monotonic()
        record = Journal(run.folder / RECORD_FOLDER, full=options.full_record)
        try:
            with errors_as_unfinished():
                engine = create_engine(run, experiment, model, trace, record, open_transport, options, watch)
                with interrupt_on_signals([engine]):
                    before = earlier_wall_seconds(trace)
                    served = "live" if options.model is None else SITE_FILE_MODEL
                    evaluated = "sites" if model.evaluator is None else "test"
                    trace.set_facts({**model.facts, SERVED: served, "evaluated": evaluated, "surveyed": ON_TEST})
                    outcome = engine.run()
                    store_results(run, trace, outcome, before + time.monotonic() - began, model.state_dict)
            if run.complete and not options.full_record:
                record.clear()
            return outcome
        finally:
            trace.close_after_error()
            record.close()


def check_servable(experiment: Experiment, file: Path | None = None) -> None:
    """Raise ConfigError if the experiment cannot be built or its first orders cannot be sent to sites."""
    world = load_model(experiment, file).world
    try:
        for job in _first_jobs(Coordinator(experiment.strategy, world)):
            message_codec.encode(JobMessage.from_job(job, None))
    except WireError as error:
        raise ConfigError(f"this strategy cannot be served: {error}") from None


def _first_jobs(run: Coordinator) -> Iterator[Job]:
    """Yield the first jobs of a few sites that join at once, including those of the first timers."""
    orders = run.begin(0.0)
    for client in range(TRIAL_SITES):
        orders += run.joined(0.0, client, 10)
    timers = {order.key: order.at for order in orders if isinstance(order, SetTimer)}
    for key, at in sorted(timers.items(), key=lambda timer: timer[1]):
        orders += run.timer_fired(at, key)
    return (order for order in orders if isinstance(order, Job))


def run_id(folder: Path) -> str:
    """Return the random id of a run, drawn once, under which sites store their results."""
    path = folder / RUN_ID_FILE
    with suppress(FileNotFoundError):
        if known := path.read_text(encoding="ascii").strip():
            return known
    write_atomically(path, secrets.token_hex(8).encode())
    return path.read_text(encoding="ascii").strip()


def create_engine(
    run: Run,
    experiment: Experiment,
    model: ServerModel,
    trace: Trace,
    record: Journal,
    open_transport: OpenTransport,
    options: ServeOptions,
    watch: Watch | None,
) -> LiveEngine:
    """Build the engine of a run and restore its last state."""
    world, number = model.world, run_id(run.folder)
    layout = rule_codec.layout_digest(world.layout, world.model.dtype)
    code = rule_codec.code_digest(experiment.strategy)
    greeting = message_codec.Greeting(number, to_yaml(experiment), layout, options.compression)
    limit = message_codec.answer_limit(world.model)
    engines: list[LiveEngine] = []

    def find_base(ticket: int) -> Tensor | None:
        """Return the model that the job of this ticket started from, or None if the ticket is not open."""
        job = engines[0].coordinator.ledger.open_jobs.get(ticket) if engines else None
        return None if job is None else job.base

    def decode(data: bytes, address: int) -> SiteMessage:
        """Decode a message of the site at this address."""
        message = message_codec.decode(data, address, limit, run=number, find_base=find_base)
        assert not isinstance(message, message_codec.Order)
        return message

    transport = open_transport(
        message_codec.encode(greeting, number), lambda order: message_codec.encode(order, number), decode
    )
    until = experiment.until
    if model.evaluator is not None:
        until = build.with_direction(until, model.evaluator.metrics)
    engine = LiveEngine(
        experiment.strategy,
        world,
        transport,
        until=until,
        layout=layout,
        code=code,
        evaluate=model.evaluator,
        evaluate_every=experiment.evaluate_every
        or (until.seconds / EVALUATIONS if until.seconds else EVALUATION_SECONDS),
        gate=Gate(world.layout, world.model.dtype, experiment.max_norm, experiment.training.bn == "local"),
        trace=trace,
        site_ids=SiteIds.load(run.folder / SITES_FILE),
        journal=record,
        checkpoints=Checkpoints(run.folder / "checkpoint"),
        checkpoint_every=options.checkpoint_every,
        min_sites=options.min_sites,
        timeouts=options.patience,
        watch=watch,
    )
    engines.append(engine)
    try:
        engine.restore()
    except BaseException:
        transport.close()
        raise
    return engine


def load_model(experiment: Experiment, file: Path | None) -> ServerModel:
    """Load the model to serve: the experiment's, or that of a site's file."""
    if is_pooled(experiment.strategy):
        raise ConfigError("this strategy trains on pooled data and cannot be served to sites")
    if file is None:
        setup = build.setup(experiment)
        return ServerModel(setup.module, replace(setup.world, clients={}), setup.evaluator, {FACT: setup.facts[FACT]})
    site_file = LoadedSiteFile(file)
    try:
        training = SiteFileTraining(site_file, experiment)
    except OffbeatError as error:
        if contract_of(experiment.strategy).sketcher is not None:
            raise ConfigError(f"this strategy needs an example input: {error}") from None
        training = None
    module = site_file.model()
    layout, model = Layout.of(module), flatten(module)
    seed, probe = experiment.seed_of("batches"), training.probe if training else None
    world = World(model=model, layout=layout, clients={}, seed=seed, probe=probe)
    return ServerModel(module, world, training.test_evaluator if training else None)
