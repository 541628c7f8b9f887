"""`simulate` trains your own model on your own data in virtual time; `repeat` runs a saved simulation again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from safetensors.torch import load_file
from torch import nn

from offbeat.api import arguments, progress_line
from offbeat.api.simulation_result import Simulation, current_command
from offbeat.api.world_options import Clients, WorldKeywords, WorldOptions, accept_world_options
from offbeat.core.errors import ConfigError, RunError
from offbeat.core.protocol import Strategy
from offbeat.core.vector import flatten
from offbeat.engine import WALL_SECONDS, WORKER_FACT, Outcome, Status, Trace, TraceDigest
from offbeat.engine.virtual import INTERRUPTED
from offbeat.experiment import build_engine, scripted
from offbeat.experiment.run import MemoryLimit, memory_facts, parse_memory_limit
from offbeat.experiment.scripted import Examples, ScriptedRun
from offbeat.experiment.spec import setting_warnings
from offbeat.metrics import open_trace, summarize
from offbeat.training import Loss, Task
from offbeat.workers import AUTO, WORKERS, WorkerChoice, choose_fastest, device_of, make_worker, parse_worker, usable

if TYPE_CHECKING:
    from offbeat.experiment.run import Run

log = logging.getLogger("offbeat")

RESUME_HINT = "No data was lost: the same call resumes it"


@accept_world_options(before="seed")
def simulate(
    model: nn.Module | Callable[[int], nn.Module],
    clients: Clients,
    strategy: Strategy | str = "fedasync",
    *,
    seed: int = 0,
    name: str = "simulation",
    worker: str = "inline",
    client_memory: str | None = None,
    progress: bool | Callable[[Status], object] = False,
    out: str | Path | None = None,
    **options: Unpack[WorldKeywords],
) -> Simulation:
    """Train `model` on the clients' own data in virtual time.

    model: A module, which is not modified, or a function of the seed that returns one.
    clients: An (inputs, labels) pair of tensors or arrays for each client, or a map-style torch data set of such
        pairs, which is read once. A mapping gives the clients names.
    strategy: A strategy, or the name of one for its defaults.
    seed: Decides all random draws.
    name: The name of the experiment.
    worker: Execution backend: 'inline' (this process), 'processes' or 'processes:4' (identical results), 'batched' or
        'cuda' (train clients together; results agree within rounding), 'ray' or 'ray:HOST:PORT' (a Ray cluster), or
        'auto' (measure which is fastest).
    client_memory: RAM limit for state that a method keeps per client, such as '8GB'. The rest goes to a temporary
        file, with identical results; '8GB:half' stores 16 bits per number.
    progress: True for a line on stderr, or a function that is called with a `Status` from time to time.
    out: A folder for the results, which 'offbeat show' reads. The same call with the same `out` resumes the run, or
        returns its result if it is complete; a different call is rejected.
    """
    seed = arguments.check_whole(seed, "seed")
    module, checked_strategy = arguments.build_model(model, seed), arguments.check_strategy(strategy)
    runs = WorldOptions(**options).build_runs(name, clients, {"": checked_strategy}, {seed: module})
    script = runs["", seed]
    for line in setting_warnings(script.experiment):
        log.warning("%s: %s", type(checked_strategy).__name__, line)
    return _execute(script, worker, client_memory, progress, out)


def repeat(
    folder: str | Path,
    model: nn.Module | Callable[[int], nn.Module],
    *,
    strategy: Strategy | None = None,
    loss: Task | Loss | None = None,
    clients: Clients | None = None,
    test: Examples | None = None,
    tests: Clients | None = None,
    worker: str = "inline",
    progress: bool | Callable[[Status], object] = False,
    out: str | Path | None = None,
) -> Simulation:
    """Run the simulation that was saved in `folder` again; with the same library versions, the result is identical.

    model: A model with the same layers; its weights are replaced by the stored initial weights.
    strategy, loss: Needed again if the simulation used your own.
    clients, test, tests: Needed if the folder stores only digests of the data (more than 64 MB).
    worker, progress, out: As in `offbeat.simulate`.

    Raises RunError, which names what changed, unless code and data are those of the original call.
    """
    path = arguments.check_folder(folder)
    record = scripted.read_record(path)
    experiment = scripted.experiment_of(path, record)
    module = scripted.with_initial_weights(path, arguments.build_model(model, experiment.seed))
    if clients is None:
        datasets = scripted.stored_datasets(path, record)
        if datasets is None:
            raise ConfigError(f"{path} stores only digests of its data: give clients=, and test= or tests= as it had")
    else:
        datasets = scripted.read_client_datasets(clients, test, tests, arguments.parameter_dtype(module))
    if record["loss"] is not None and loss is None:
        raise ConfigError(f"the simulation in {path} has a loss of its own, {record['loss']}: give loss=")
    if "strategy" in record["scripted"]:
        if strategy is None:
            name = type(experiment.strategy).__name__
            raise ConfigError(f"the simulation in {path} has a strategy of its own, {name}: give strategy={name}(…)")
        experiment = replace(experiment, strategy=strategy)
    script = ScriptedRun(experiment, module, datasets, arguments.check_loss(loss))
    script.check_same_call(path)
    return _execute(script, worker, None, progress, out)


def _execute(
    script: ScriptedRun,
    worker: str,
    client_memory: str | None,
    progress: bool | Callable[[Status], object],
    out: str | Path | None,
) -> Simulation:
    """Execute a run in memory, or in a folder if `out` names one."""
    choice = parse_worker(arguments.check_text(worker, "worker", "processes:4"))
    memory = None if client_memory is None else arguments.check_text(client_memory, "client_memory", "8GB")
    limit = None if memory is None else parse_memory_limit(memory)
    with progress_line.watch_run(progress, script.experiment.until) as watch:
        if out is not None:
            return _execute_in_folder(script, arguments.check_folder(out), str(choice), memory, watch)
        return _execute_in_memory(script, usable(choice), limit, watch)


def _execute_in_memory(
    script: ScriptedRun, choice: WorkerChoice, limit: MemoryLimit | None, watch: Callable[[Status], None] | None
) -> Simulation:
    """Execute a run without writing files."""
    started = time.monotonic()
    if choice == AUTO and WORKERS["cuda"].missing() is None:
        choice = WorkerChoice("cuda")
    device = device_of(choice)
    setup, experiment = script.setup(device), script.experiment
    if choice == AUTO:
        choice, _ = choose_fastest(setup.trainer, setup.world)
    notes: list[str] = []
    worker = make_worker(choice, setup.trainer, notes.append)
    memory = None if limit is None else limit.open(device=device)
    engine = build_engine(setup, experiment, worker=worker, memory=memory, watch=watch)
    engine.trace.set_facts({**setup.facts, WORKER_FACT: choice, **memory_facts(limit)})
    outcome = engine.run()
    engine.trace.set_facts({WALL_SECONDS: time.monotonic() - started, **outcome.costs()})
    if notes:
        engine.trace.set_facts({WORKER_FACT: f"{choice} ({', '.join(notes)})"})
    engine.trace.flush()
    target = experiment.until.target or experiment.target
    summary = summarize(engine.trace.db, experiment.population, target)
    return Simulation(script, outcome, summary, engine.trace)


def _execute_in_folder(
    script: ScriptedRun, folder: Path, worker: str, memory: str | None, watch: Callable[[Status], None] | None
) -> Simulation:
    """Execute or resume a run in a folder, or load its result if it is complete."""
    from offbeat.experiment.run import Run, Unfinished, create_run, execute_run

    run = Run(folder, script)
    if run.scripted:
        run.check_unchanged()
        if difference := run.machine_difference():
            log.warning("%s: %s", folder, difference)
    else:
        script.setup()  # reject what cannot be built before the folder is created
        create_run(folder, script.experiment, current_command(), worker=worker, memory=memory, script=script)
    try:
        outcome = execute_run(run, watch, worker=worker, memory=memory)
    except Unfinished as error:
        raise RunError(f"{error}. {RESUME_HINT}") from None
    if outcome is not None and outcome.reason == INTERRUPTED:
        raise KeyboardInterrupt(f"stopped at {outcome.now:.0f} virtual seconds. {RESUME_HINT}")
    return load_simulation(run)


def load_simulation(run: Run) -> Simulation:
    """Load a complete simulation from its folder into memory; no file stays open."""
    assert run.script is not None
    summary, trace = run.summary(), Trace()
    with open_trace(run.trace_file) as db:
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
