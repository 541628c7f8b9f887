"""The Python door: a simulation on your own model and data, in one call."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file
from torch import nn

from offbeat.api import arguments, progress_line
from offbeat.api.simulation_result import Simulation, called_by
from offbeat.api.world_options import asked
from offbeat.core.errors import ConfigError, RunError
from offbeat.core.protocol import Strategy
from offbeat.core.vector import flatten
from offbeat.engine.progress import Outcome, Status
from offbeat.engine.trace import WORKER_FACT, Trace
from offbeat.engine.trace_file import TraceDigest
from offbeat.engine.until import Target, Until
from offbeat.engine.virtual.virtual_engine import INTERRUPTED
from offbeat.experiment import build
from offbeat.experiment.run import auto_worker
from offbeat.experiment.run import client_memory as memories
from offbeat.experiment.scripted import client_datasets
from offbeat.experiment.scripted import scripted_run as giving
from offbeat.experiment.scripted.client_datasets import Examples
from offbeat.experiment.scripted.scripted_run import ScriptedRun
from offbeat.experiment.spec import config
from offbeat.metrics import trace_summary
from offbeat.scenario.availability import Availability
from offbeat.scenario.delays import Delays
from offbeat.scenario.faults import Fault
from offbeat.scenario.network import Network
from offbeat.scenario.streaming import Stream
from offbeat.training.tasks import Loss, Task
from offbeat.training.trainer import Training
from offbeat.workers import registry

if TYPE_CHECKING:
    from offbeat.experiment.run.run_folder import Run

log = logging.getLogger("offbeat")

WHOLE = "What is stored is whole: the same call goes on with it"


def simulate(
    model: nn.Module | Callable[[int], nn.Module],
    clients: Sequence[Examples] | Mapping[str, Examples] | Mapping[int, Examples],
    strategy: Strategy | str = "fedasync",
    *,
    delays: Delays | float | Sequence[float] | Mapping[str, float] = 60.0,
    network: Network | None = None,
    availability: Availability | None = None,
    faults: Fault | Sequence[Fault] = (),
    streaming: Stream | None = None,
    until: Until | str | float = "3600s",
    target: Target | str | None = None,
    test: Examples | None = None,
    tests: Sequence[Examples] | Mapping[str, Examples] | Mapping[int, Examples] | None = None,
    training: Training | None = None,
    loss: Task | Loss | None = None,
    evaluate_every: float | None = None,
    max_norm: float | None = None,
    seed: int = 0,
    name: str = "simulation",
    worker: str = "inline",
    client_memory: str | None = None,
    progress: bool | Callable[[Status], Any] = False,
    out: str | Path | None = None,
) -> Simulation:
    """Train `model` on the clients' own data in virtual time.

    model: a module, which is left as it is, or a function of the seed that makes one. clients: an (inputs, labels) pair
    of tensors or arrays each, or a map-style torch data set of such pairs, read once; a mapping gives them names.
    strategy: an object, or its name for the defaults. delays: a law from offbeat.scenario.delays, seconds a job for
    all, or for each client. network, availability, faults: laws of offbeat.scenario, for what sending takes, when
    clients can be reached and what goes wrong. streaming: a law from offbeat.scenario.streaming if the clients' data
    arrives over time, in the order given unless its classes drift; without it all is there. until: '3600s',
    '500updates', 'acc=0.9,3600s'. target: 'acc=0.9', what "time to target" means; it does not end the run. test: what
    to evaluate on; tests: test examples of each client, given as the clients are: every client is evaluated on its
    own, and without `test` the metrics are the means over clients; without either, the clients' data. loss: a function
    (outputs, labels) -> scalar; by default cross entropy for whole-number labels and squared error for real ones.
    evaluate_every: virtual seconds; by default a fiftieth of the run. max_norm: updates that moved further are refused.
    worker: who trains: 'inline' is this process, 'processes' one a core, 'processes:4' four, with the same result;
    'batched' and 'cuda' train clients together, with the same within rounding; 'auto' tries which is the quickest;
    'ray', or 'ray:HOST:PORT', is a Ray cluster. client_memory: '8GB', for what a method keeps of each client; beyond it
    lies in a temporary file, and the result is the same; '8GB:half' keeps it in 16 bits. progress: True for a line on
    stderr, or a function that is given the Status now and then. out: a folder, which 'offbeat show' reads. The same
    call with the same `out` again goes on where it was stopped, or gives what came out; another call is refused.
    """
    seed = arguments.whole(seed, "seed")
    module, chosen = arguments.modelled(model, seed), arguments.strategy(strategy)
    given = asked(
        module,
        clients,
        name=name,
        delays=delays,
        network=network,
        availability=availability,
        faults=faults,
        streaming=streaming,
        until=until,
        target=target,
        test=test,
        tests=tests,
        training=training,
        loss=loss,
        evaluate_every=evaluate_every,
        max_norm=max_norm,
    ).given(chosen, seed, module)
    for line in config.setting_warnings(given.experiment):
        log.warning("%s: %s", type(chosen).__name__, line)
    return play(given, worker, client_memory, progress, out)


def repeat(
    folder: str | Path,
    model: nn.Module | Callable[[int], nn.Module],
    *,
    strategy: Strategy | None = None,
    loss: Task | Loss | None = None,
    clients: Sequence[Examples] | Mapping[str, Examples] | Mapping[int, Examples] | None = None,
    test: Examples | None = None,
    tests: Sequence[Examples] | Mapping[str, Examples] | Mapping[int, Examples] | None = None,
    worker: str = "inline",
    progress: bool | Callable[[Status], Any] = False,
    out: str | Path | None = None,
) -> Simulation:
    """Once more the simulation that was saved in `folder`: with the same versions, the same bits.

    model: of the same layers; its weights are those the simulation began with. A strategy or loss of your own has to be
    given again, and so has the data where the folder has only its digests (more than 64 MB). What is not what it was is
    refused, by name.
    """
    path = arguments.folder(folder)
    stored = giving.read_record(path)
    experiment = giving.experiment_of(path, stored)
    module = giving.with_initial_weights(path, arguments.modelled(model, experiment.seed))
    if clients is None:
        held = giving.stored_datasets(path, stored)
        if held is None:
            raise ConfigError(f"{path} has only the digests of its data: give clients=, and test= or tests= as it had")
    else:
        held = client_datasets.read_client_datasets(clients, test, tests, arguments.precision(module))
    if stored["loss"] is not None and loss is None:
        raise ConfigError(f"the simulation in {path} has a loss of its own, {stored['loss']}: give loss=")
    if "strategy" in stored["scripted"]:
        if strategy is None:
            own = type(experiment.strategy).__name__
            raise ConfigError(f"the simulation in {path} has a strategy of its own, {own}: give strategy={own}(…)")
        experiment = replace(experiment, strategy=strategy)
    given = ScriptedRun(experiment, module, held, arguments.loss(loss))
    given.check_same_call(path)
    return play(given, worker, None, progress, out)


# ---------------------------------------------------------------- how it is played


def play(
    given: ScriptedRun,
    worker: str,
    client_memory: str | None,
    progress: bool | Callable[[Status], Any],
    out: str | Path | None,
) -> Simulation:
    """In memory, or in a folder."""
    choice = registry.parse_worker(arguments.text(worker, "worker", "processes:4"))
    memory = None if client_memory is None else arguments.text(client_memory, "client_memory", "8GB")
    limit = None if memory is None else memories.parse_memory_limit(memory)
    with progress_line.one_run(progress, given.experiment.until) as watch:
        if out is not None:
            return _in_folder(given, arguments.folder(out), str(choice), memory, watch)
        return _in_memory(given, registry.usable(choice), limit, watch)


def _in_memory(
    given: ScriptedRun,
    chosen: registry.WorkerChoice,
    limit: memories.MemoryLimit | None,
    watch: Callable[[Status], None] | None,
) -> Simulation:
    began = time.monotonic()
    if chosen == registry.AUTO and registry.WORKERS["cuda"].missing() is None:
        chosen = registry.WorkerChoice("cuda")
    device = registry.device_of(chosen)
    made, experiment = given.setup(device), given.experiment
    if chosen == registry.AUTO:
        chosen, _ = auto_worker.settle(made)
    notes: list[str] = []
    computing = registry.make_worker(chosen, made.trainer, notes.append)
    kept = None if limit is None else limit.make(device=device)
    engine = build.build_engine(made, experiment, worker=computing, memory=kept, watch=watch)
    engine.trace.set_facts({**made.facts, WORKER_FACT: chosen, **memories.memory_facts(limit)})
    outcome = engine.run()
    engine.trace.set_facts({"wall_seconds": time.monotonic() - began, **outcome.costs()})
    if notes:
        engine.trace.set_facts({WORKER_FACT: f"{chosen} ({', '.join(notes)})"})
    engine.trace.flush()
    target = experiment.until.target or experiment.target
    return Simulation(
        given, outcome, trace_summary.summarize(engine.trace.db, experiment.population, target), engine.trace
    )


def _in_folder(
    given: ScriptedRun, folder: Path, worker: str, memory: str | None, watch: Callable[[Status], None] | None
) -> Simulation:
    from offbeat.experiment.run import execution as runs  # which not every system can have

    run = runs.Run(folder, given)
    if run.scripted:
        run.check_unchanged()
        if moved := run.machine_difference():
            log.warning("%s: %s", folder, moved)
    else:
        given.setup()  # what cannot be built is refused before a folder is made
        runs.create_run(folder, given.experiment, called_by(), worker=worker, memory=memory, script=given)
    try:
        outcome = runs.execute_run(run, watch, worker=worker, memory=memory)
    except runs.Unfinished as error:
        raise RunError(f"{error}. {WHOLE}") from None
    if outcome is not None and outcome.reason == INTERRUPTED:
        raise KeyboardInterrupt(f"stopped at {outcome.now:.0f} virtual seconds. {WHOLE}")
    return loaded(run)


def loaded(run: Run) -> Simulation:
    """A simulation that is complete, from its folder; it keeps nothing of that open."""
    assert run.script is not None
    summary, trace = run.summary(), Trace()
    with trace_summary.open_trace(run.trace_file) as db:
        db.backup(trace.db)
    trace.digest_so_far = TraceDigest.from_database(trace.db)
    module = deepcopy(run.script.module)
    module.load_state_dict(load_file(run.model_file))
    outcome = Outcome(
        reason=summary.ended,
        now=summary.seconds,
        version=summary.versions,
        updates=summary.updates,
        model=flatten(module),
        metrics=summary.metrics,
        server_seconds=summary.server_seconds,
        server_bytes=int(summary.server_bytes),
    )
    return Simulation(run.script, outcome, summary, trace)
