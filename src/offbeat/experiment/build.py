"""Build everything that a run needs from an experiment: data, model, simulated world, trainer and engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from offbeat.core.computed_rows import map_rows
from offbeat.core.errors import ConfigError, unknown_name
from offbeat.core.protocol import (
    ClientReady,
    Dispatch,
    Event,
    LocalRule,
    LocalWork,
    SetTimer,
    Strategy,
    TimerFired,
    World,
)
from offbeat.core.strategy_contract import contract_of
from offbeat.core.threads import one_thread
from offbeat.core.vector import Binding, Layout, flatten
from offbeat.engine import Checkpoints, ClientMemory, Gate, Trace, Until, Worker
from offbeat.engine.virtual import VirtualEngine, Watch
from offbeat.experiment import model_card, speed_groups
from offbeat.experiment.data_assignment import arrival_order, assign_examples, owner_names
from offbeat.experiment.spec.config import Experiment, is_pooled
from offbeat.metrics import DIRECTIONS, names_fact
from offbeat.scenario import Always, ExampleCounts, Instant, Payload, SimulatedWorld, Static, result_modifier
from offbeat.scenario.data import load
from offbeat.scenario.delays import ConstantDelays
from offbeat.training import (
    SLOW_CLASSES,
    SLOWEST,
    TASKS,
    Classification,
    ClientData,
    ClientTests,
    Evaluator,
    Loss,
    Metric,
    Surveyor,
    Task,
    Trainer,
    as_task,
    check_model,
    exclusive_generators,
    make_probe,
)
from offbeat.workers import FaultyWorker, Inline

DEFAULT_EVALUATIONS = 50  # evaluations of a run without evaluate_every
MAX_ASSUMED_ACTIVE = 1000  # limit of concurrently active clients for the default evaluation interval


@dataclass(frozen=True)
class Setup:
    """Everything of an experiment that does not depend on the run folder or the worker."""

    module: nn.Module
    world: World
    simulated_world: SimulatedWorld
    trainer: Trainer
    evaluator: Evaluator
    evaluate_every: float
    surveyor: Surveyor | None = None
    client_tests: ClientTests | None = None  # set if each client is evaluated on its own test examples
    facts: Mapping[str, str] = field(default_factory=dict)  # stored in the trace

    @property
    def layout(self) -> Layout:
        """Return the layout of the model vector."""
        return self.world.layout

    def state_dict(self, model: Tensor) -> dict[str, Tensor]:
        """Convert a model vector to a state_dict of the module."""
        return state_dict(self.module, model)


def state_dict(module: nn.Module, model: Tensor) -> dict[str, Tensor]:
    """Return the state_dict of the module with this model, including frozen parameters; no tensors share memory."""
    binding = Binding(deepcopy(module))  # a module of the user must not change
    with torch.no_grad():
        binding.load(model)
    return {name: t.detach().clone().contiguous() for name, t in binding.module.state_dict().items()}


@one_thread()
def setup(experiment: Experiment, device: str = "cpu") -> Setup:
    """Load the data of an experiment and build everything on that device."""
    data = load(experiment.data)
    seed, assigned = experiment.seed_of("partition"), assign_examples(experiment, data)
    trained = experiment.split.rows_of_part("train", seed, assigned)
    rows = map_rows(trained, partial(arrival_order, experiment.streaming, seed, data.y_train))
    x_train, y_train, x_test, y_test = (
        copy_to_device(device, tensor) for tensor in (data.x_train, data.y_train, data.x_test, data.y_test)
    )
    clients = ClientData.shared(x_train, y_train, rows, num_classes=data.num_classes)
    with exclusive_generators():
        module = experiment.model.build(data.input_shape, data.outputs, experiment.seed_of("model")).to(device)
    if data.pixels is not None:
        module.register_forward_pre_hook(data.pixels)  # images stay bytes until the forward pass
    task = experiment.loss.of(TASKS[data.task or "classification"](), data.num_classes)
    evaluator = Evaluator(module, x_test, y_test, task)
    tests: ClientData | None
    if experiment.split.test > 0:
        held_out = experiment.split.rows_of_part("test", seed, assigned)
        tests = ClientData.shared(x_train, y_train, held_out, num_classes=data.num_classes)
    else:
        tests = speed_groups.tests_of_owners(data, assigned)
        tests = None if tests is None else tests.to(device)
    assembled = assemble(module, clients, evaluator, experiment, task, tests)
    facts = {"data": data.summary, "evaluated": experiment.evaluate, **model_card.model_facts(module, data)}
    names = names_fact(owner_names(experiment, data, assigned))
    return replace(assembled, facts={**assembled.facts, **facts, **names})


def first_rule(strategy: Strategy, world: World) -> LocalRule | None:
    """Return the client rule of the first job that a strategy dispatches when all clients are ready."""
    state = strategy.init(world)
    events: list[Event] = [ClientReady(now=0.0, client=k, num_examples=n) for k, n in world.clients.items()]
    for event in events:
        for action in strategy.on_event(state, event):
            if isinstance(action, Dispatch):
                return action.work.rule
            if isinstance(action, SetTimer):  # synchronous rounds start when their timer fires
                events.append(TimerFired(now=action.at, key=action.key))
    return None


def copy_to_device(device: str, tensor: Tensor) -> Tensor:
    """Return the tensor on that device; runs of a comparison share one copy."""
    if tensor.device.type == torch.device(device).type:
        return tensor
    if tensor not in _device_copies:
        _device_copies[tensor] = tensor.to(device)
    copy: Tensor = _device_copies[tensor]
    return copy


_device_copies = WeakTensorKeyDictionary()


@one_thread()  # the number of threads can change initial weights, sketches and thus results
def assemble(
    module: nn.Module,
    clients: ClientData,
    evaluator: Evaluator,
    experiment: Experiment,
    task: Task | Loss | None = None,
    tests: ClientData | None = None,  # of each client
) -> Setup:
    """Combine a module and client data with the settings of an experiment."""
    _reject_impossible(experiment, module, clients, evaluator.metrics)
    task = as_task(task, clients.label_dtype)
    check_model(module, clients, evaluator, task)
    seed, model, layout = experiment.seed_of("batches"), flatten(module), Layout.of(module)
    contract = contract_of(experiment.strategy)
    probe = None if contract.sketcher is None else make_probe(contract.sketcher, module, clients, task, seed)
    local = _keeps_local_statistics(experiment)
    if local and layout.params_only:
        raise ConfigError("training.bn = 'local': this model has no BatchNorm statistics; use 'shared'")
    trainer = Trainer(module, clients, experiment.training, task, probe)
    payload = Payload.of(contract, layout.trainable(model) if local else model, layout)
    simulated_world = _build_world(experiment, trainer, payload)
    surveyed = clients.sample(experiment.survey.clients)
    surveyor = _build_surveyor(simulated_world, trainer.data, surveyed, evaluator, tests, experiment)
    client_tests = None
    if experiment.evaluate == "clients":
        if tests is None:
            hint = "set split: {train: 0.6, validation: 0.2}, or use data whose owners have test examples"
            raise ConfigError(f"evaluate = 'clients': not every client has its own test examples; {hint}")
        client_tests = ClientTests(evaluator, tests, surveyed)
    if is_pooled(experiment.strategy):
        # one machine with all data, always available and as fast as the mean client
        experiment = replace(
            experiment,
            delays=_mean_client_delays(trainer, experiment),
            network=Instant(),
            availability=Always(),
            faults=(),
            streaming=Static(),
            training=replace(experiment.training, bn="shared"),  # with one client there is nothing to keep local
        )
        clients = clients.as_one_client()
        trainer = Trainer(module, clients, experiment.training, task, probe)
        simulated_world = _build_world(experiment, trainer, payload)
    counts = clients.num_examples
    world = World(model=model, layout=layout, clients=_initial_counts(simulated_world), seed=seed, probe=probe)
    every = experiment.evaluate_every or _default_interval(experiment.until, simulated_world, counts)
    facts = {DIRECTIONS: json.dumps(metric_directions(evaluator.metrics))}
    return Setup(module, world, simulated_world, trainer, evaluator, every, surveyor, client_tests, facts)


def _initial_counts(simulated_world: SimulatedWorld) -> Mapping[int, int]:
    """Return the number of examples that each client has at the start."""
    counts = simulated_world.counts
    if isinstance(simulated_world.streaming, Static):
        return counts
    arrived = (simulated_world.num_examples(client, 0, 0.0) for client in counts)
    if isinstance(counts, ExampleCounts):
        return ExampleCounts(np.fromiter(arrived, dtype=np.int64, count=len(counts)))
    return dict(zip(counts, arrived, strict=True))


def _keeps_local_statistics(experiment: Experiment) -> bool:
    """Tell whether each client keeps its own BatchNorm statistics; pooled methods have only one client."""
    return experiment.training.bn == "local" and not is_pooled(experiment.strategy)


def _build_world(experiment: Experiment, trainer: Trainer, payload: Payload) -> SimulatedWorld:
    """Build the simulated world in which the clients of the trainer work."""
    return SimulatedWorld(
        delays=experiment.delays,
        counts=trainer.data.num_examples,
        seed=experiment.seed_of("delays"),
        steps=trainer.count_steps,
        payload=payload,
        network=experiment.network,
        availability=experiment.availability,
        faults=experiment.faults,
        streaming=experiment.streaming,
    )


def _build_surveyor(
    simulated_world: SimulatedWorld,
    data: ClientData,
    surveyed: Sequence[int],
    evaluator: Evaluator,
    tests: ClientData | None,
    experiment: Experiment,
) -> Surveyor | None:
    """Build the survey of all clients; also let the evaluator report accuracy on the class mix of the slowest."""
    if experiment.survey.examples == 0:
        return None
    seconds = speed_groups.expected_seconds(simulated_world, surveyed)
    surveyor = speed_groups.build_surveyor(evaluator, data, tests, seconds, experiment.survey)
    classes = data.num_classes
    if SLOWEST in surveyor.groups and classes is not None and isinstance(evaluator.task, Classification):
        evaluator.mixes = {SLOW_CLASSES: speed_groups.class_shares(data, surveyor.groups[SLOWEST], classes)}
    return surveyor


def _reject_impossible(
    experiment: Experiment, module: nn.Module, clients: ClientData, measured: Sequence[Metric]
) -> None:
    """Reject targets with unknown metrics, recordings that lack some clients, and 16-bit parameters."""
    known = [metric.name for metric in measured]
    for target in (experiment.until.target, experiment.target):
        if target is not None and target.metric not in known:
            raise ConfigError(f"target {target}: {unknown_name('metric', target.metric, known)}")
    for law in (experiment.delays, experiment.network, experiment.availability):
        if (covers := getattr(law, "covers", None)) is not None:
            covers(clients.num_examples)  # raises if a recording lacks a client
    dtype = flatten(module).dtype
    if dtype not in (torch.float32, torch.float64):  # in a sum of a thousand 16-bit models, further ones change nothing
        raise ConfigError(f"the model's parameters are {dtype}: use float32, and torch.autocast in forward for speed")


def _mean_client_delays(trainer: Trainer, experiment: Experiment) -> ConstantDelays:
    """Return the delays of a machine as fast as the mean client, in seconds per step."""
    delays, seed, counts = experiment.delays, experiment.seed_of("delays"), trainer.data.num_examples
    steps = ((client, trainer.count_steps(client, LocalWork(), count)) for client, count in counts.items())
    mean = fmean(delays.expected(seed, client, number) / number for client, number in steps)
    return ConstantDelays(mean=mean, unit="step", jitter=getattr(delays, "jitter", 0.0))


def _default_interval(until: Until, simulated_world: SimulatedWorld, counts: Mapping[int, int]) -> float:
    """Return the default time between evaluations: a fiftieth of the run, in seconds.

    If only the number of updates is known, estimate the length with all clients (at most 1000) active at once.
    """
    if until.seconds is not None:
        return until.seconds / DEFAULT_EVALUATIONS
    assert until.updates is not None
    first_clients = islice(counts, 1000)
    mean = fmean(simulated_world.time_job(c, 0, LocalWork(), counts[c], 0.0).expected for c in first_clients)
    return max(until.updates * mean / min(len(counts), MAX_ASSUMED_ACTIVE) / DEFAULT_EVALUATIONS, 1e-9)


def metric_directions(measured: Sequence[Metric]) -> dict[str, bool]:
    """Return for each metric whether higher is better."""
    return {metric.name: metric.higher_is_better for metric in measured}


def with_direction(until: Until, measured: Sequence[Metric]) -> Until:
    """Add the direction of its metric, which the task knows, to the target of `until`."""
    if until.target is None:
        return until
    return replace(until, target=until.target.with_direction(metric_directions(measured)))


@one_thread()  # strategies may compute in init
def build_engine(
    setup: Setup,
    experiment: Experiment,
    *,
    trace: Trace | None = None,
    checkpoints: Checkpoints | None = None,
    checkpoint_every: float = 30.0,
    watch: Watch | None = None,
    worker: Worker | None = None,
    memory: ClientMemory | None = None,
) -> VirtualEngine:
    """Build the engine of a run; without a worker, jobs are computed inline."""
    world = setup.world if memory is None else replace(setup.world, store=memory.store)
    computing = worker or Inline(setup.trainer)
    if (spoil := result_modifier(setup.simulated_world.faults, setup.layout)) is not None:
        computing = FaultyWorker(computing, spoil)
    return VirtualEngine(
        experiment.strategy,
        world,
        setup.simulated_world,
        computing,
        until=with_direction(experiment.until, setup.evaluator.metrics),
        evaluate=setup.evaluator,
        client_means=setup.client_tests,
        evaluate_every=setup.evaluate_every,
        survey=setup.surveyor,
        survey_every=experiment.survey.every,
        gate=Gate(setup.layout, setup.world.model.dtype, experiment.max_norm, _keeps_local_statistics(experiment)),
        trace=trace,
        checkpoints=checkpoints,
        checkpoint_every=checkpoint_every,
        timeout=experiment.timeout,
        watch=watch,
    )
