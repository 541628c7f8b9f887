"""From an experiment to an engine that is ready to run."""

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
from offbeat.core.ledger import Payload
from offbeat.core.protocol import LocalWork, World
from offbeat.core.strategy_contract import contract_of
from offbeat.core.threads import one_thread
from offbeat.core.vector import Binding, Layout, flatten
from offbeat.engine.checkpoint import Checkpoints
from offbeat.engine.client_store import ClientMemory
from offbeat.engine.gate import Gate
from offbeat.engine.trace import Trace
from offbeat.engine.until import Until
from offbeat.engine.virtual.virtual_engine import VirtualEngine, Watch
from offbeat.engine.worker import Worker
from offbeat.experiment import model_card, speed_groups
from offbeat.experiment.data_assignment import arrival_order, assign_examples, owner_names
from offbeat.experiment.spec.config import Experiment, is_pooled
from offbeat.metrics import client_names, trace_summary
from offbeat.scenario.availability import Always
from offbeat.scenario.data import load
from offbeat.scenario.delays import ConstantDelays
from offbeat.scenario.example_counts import ExampleCounts
from offbeat.scenario.faults import result_modifier
from offbeat.scenario.network import Instant
from offbeat.scenario.simulated_world import SimulatedWorld
from offbeat.scenario.streaming import Static
from offbeat.training.client_data import ClientData
from offbeat.training.evaluation import SLOW_CLASSES, SLOWEST, ClientTests, Evaluator, Surveyor, check_model
from offbeat.training.sensitivity import make_probe
from offbeat.training.tasks import TASKS, Classification, Loss, Metric, Task, as_task
from offbeat.training.torch_state import exclusive_generators
from offbeat.training.trainer import Trainer
from offbeat.workers.inline import Inline
from offbeat.workers.wrappers import FaultyWorker

DEFAULT_EVALUATIONS = 50  # evaluations in a run whose grid is not given
MAX_ASSUMED_ACTIVE = 1000  # clients at most that are taken to work at once, where a grid is guessed


@dataclass(frozen=True)
class Setup:
    """Everything about an experiment that does not depend on when or where it runs."""

    module: nn.Module
    world: World
    simulated_world: SimulatedWorld
    trainer: Trainer
    evaluator: Evaluator
    evaluate_every: float
    surveyor: Surveyor | None = None
    client_tests: ClientTests | None = (
        None  # what the grid shows, where clients are evaluated on test examples of their own
    )
    facts: Mapping[str, str] = field(default_factory=dict)  # what a reader of the results has to know

    @property
    def layout(self) -> Layout:
        return self.world.layout

    def state_dict(self, model: Tensor) -> dict[str, Tensor]:
        return state_dict(self.module, model)


def state_dict(module: nn.Module, model: Tensor) -> dict[str, Tensor]:
    """The whole module with this model in it, frozen parameters and all; no tensor shares memory."""
    binding = Binding(deepcopy(module))  # the module may be the user's own
    with torch.no_grad():
        binding.load(model)
    return {name: t.detach().clone().contiguous() for name, t in binding.module.state_dict().items()}


@one_thread()
def setup(experiment: Experiment, device: str = "cpu") -> Setup:
    """`device`: where data, models and all that is computed from them lie."""
    data = load(experiment.data)
    seed, dealt = experiment.seed_of("partition"), assign_examples(experiment, data)
    trained = experiment.split.rows_of_part("train", seed, dealt)
    rows = map_rows(trained, partial(arrival_order, experiment.streaming, seed, data.y_train))
    x_train, y_train, x_test, y_test = (
        copy_to_device(device, tensor) for tensor in (data.x_train, data.y_train, data.x_test, data.y_test)
    )
    clients = ClientData.shared(x_train, y_train, rows, num_classes=data.num_classes)
    with exclusive_generators():
        module = experiment.model.build(data.input_shape, data.outputs, experiment.seed_of("model")).to(device)
    if data.pixels is not None:
        module.register_forward_pre_hook(data.pixels)  # images stay bytes until a model sees them
    task = experiment.loss.of(TASKS[data.task or "classification"](), data.num_classes)
    evaluator = Evaluator(module, x_test, y_test, task)
    tests: ClientData | None
    if experiment.split.test > 0:
        held_out = experiment.split.rows_of_part("test", seed, dealt)
        tests = ClientData.shared(x_train, y_train, held_out, num_classes=data.num_classes)
    else:
        tests = speed_groups.tests_of_owners(data, dealt)
        tests = None if tests is None else tests.to(device)
    made = assemble(module, clients, evaluator, experiment, task, tests)
    facts = {"data": data.summary, "evaluated": experiment.evaluate, **model_card.model_facts(module, data)}
    return replace(made, facts={**made.facts, **facts, **client_names.names_fact(owner_names(experiment, data, dealt))})


def copy_to_device(device: str, tensor: Tensor) -> Tensor:
    """The tensor, or its one copy on that device: the runs of a comparison share it."""
    if tensor.device.type == torch.device(device).type:
        return tensor
    if tensor not in _device_copies:
        _device_copies[tensor] = tensor.to(device)
    copy: Tensor = _device_copies[tensor]
    return copy


_device_copies = WeakTensorKeyDictionary()


@one_thread()  # weights are drawn, models tried and sketched: all of it can reach a result
def assemble(
    module: nn.Module,
    clients: ClientData,
    evaluator: Evaluator,
    experiment: Experiment,
    task: Task | Loss | None = None,
    tests: ClientData | None = None,  # held out, of each client
) -> Setup:
    """Put a module and its clients' data into the experiment's world."""
    _check_targets(experiment, evaluator.metrics)
    _check_recordings(experiment, clients)
    _check_precision(module)
    task = as_task(task, clients.label_dtype)
    check_model(module, clients, evaluator, task)
    seed, model, layout = experiment.seed_of("batches"), flatten(module), Layout.of(module)
    contract = contract_of(experiment.strategy)
    probe = None if contract.sketcher is None else make_probe(contract.sketcher, module, clients, task, seed)
    local = _keeps_local_statistics(experiment)
    if local and layout.params_only:
        raise ConfigError(
            "training.bn = 'local': this model has no statistics that clients could keep; leave it 'shared'"
        )
    trainer = Trainer(module, clients, experiment.training, task, probe)
    payload = Payload.of(contract, layout.trainable(model) if local else model, layout)
    surroundings = _build_world(experiment, trainer, payload)
    asked = clients.sample(experiment.survey.clients)
    surveyor = _build_surveyor(surroundings, trainer.data, asked, evaluator, tests, experiment)
    own = None if experiment.evaluate == "test" else ClientTests(evaluator, _require_tests(tests), asked)
    if is_pooled(experiment.strategy):
        # one machine that is always there and has it all
        speed = _mean_client_delays(trainer, experiment)
        training = replace(experiment.training, bn="shared")  # there is nobody to keep them from
        experiment = replace(
            experiment,
            delays=speed,
            network=Instant(),
            availability=Always(),
            faults=(),
            streaming=Static(),
            training=training,
        )
        clients = clients.as_one_client()
        trainer = Trainer(module, clients, experiment.training, task, probe)
        surroundings = _build_world(experiment, trainer, payload)
    counts = clients.num_examples
    world = World(model=model, layout=layout, clients=_initial_counts(surroundings), seed=seed, probe=probe)
    every = experiment.evaluate_every or _default_interval(experiment.until, surroundings, counts)
    facts = {
        trace_summary.DIRECTIONS: json.dumps(metric_directions(evaluator.metrics))
    }  # stored with the run: names do not tell
    return Setup(module, world, surroundings, trainer, evaluator, every, surveyor, own, facts)


def _initial_counts(surroundings: SimulatedWorld) -> Mapping[int, int]:
    """How much clients have at the start, which is what they say when they register."""
    counts = surroundings.counts
    if isinstance(surroundings.streaming, Static):
        return counts
    arrived = (surroundings.num_examples(client, 0, 0.0) for client in counts)
    if isinstance(counts, ExampleCounts):
        return ExampleCounts(np.fromiter(arrived, dtype=np.int64, count=len(counts)))
    return dict(zip(counts, arrived, strict=True))


def _keeps_local_statistics(experiment: Experiment) -> bool:
    """Does every client keep its BatchNorm statistics? Where all data is in one place there is no such thing."""
    return experiment.training.bn == "local" and not is_pooled(experiment.strategy)


def _build_world(experiment: Experiment, trainer: Trainer, payload: Payload) -> SimulatedWorld:
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
    federated: SimulatedWorld,
    data: ClientData,
    asked: Sequence[int],
    evaluator: Evaluator,
    tests: ClientData | None,
    experiment: Experiment,
) -> Surveyor | None:
    """Who is asked at the end; the evaluator is told what the slowest hold, so that it can follow it over time."""
    if experiment.survey.examples == 0:
        return None
    made = speed_groups.build_surveyor(
        evaluator, data, tests, speed_groups.expected_seconds(federated, asked), experiment.survey
    )
    classes = data.num_classes
    if SLOWEST in made.groups and classes is not None and isinstance(evaluator.task, Classification):
        evaluator.mixes = {SLOW_CLASSES: speed_groups.class_shares(data, made.groups[SLOWEST], classes)}
    return made


def _require_tests(tests: ClientData | None) -> ClientData:
    if tests is not None:
        return tests
    how = (
        "give each a part of its data with split: {train: 0.6, validation: 0.2}, or use data whose owners have "
        "test examples"
    )
    raise ConfigError(f"evaluate = 'clients': not every client has test examples of its own; {how}")


def _check_recordings(experiment: Experiment, clients: ClientData) -> None:
    """What was recorded must hold every client, and is best found wanting before the run."""
    for law in (experiment.delays, experiment.network, experiment.availability):
        if (covers := getattr(law, "covers", None)) is not None:
            covers(clients.num_examples)


def _check_precision(module: nn.Module) -> None:
    """Servers add up many models; in 16 bits a thousand of them no longer change the sum."""
    dtype = flatten(module).dtype
    if dtype not in (torch.float32, torch.float64):
        raise ConfigError(
            f"the model's parameters are {dtype}: keep them in float32, and let its forward use torch.autocast for "
            "speed"
        )


def _check_targets(experiment: Experiment, measured: Sequence[Metric]) -> None:
    """A misspelt metric would only look like a target that is never reached."""
    known = [metric.name for metric in measured]
    for target in (experiment.until.target, experiment.target):
        if target is not None and target.metric not in known:
            raise ConfigError(f"target {target}: {unknown_name('metric', target.metric, known)}")


def _mean_client_delays(trainer: Trainer, experiment: Experiment) -> ConstantDelays:
    """Of a machine that is as fast as the mean client, in seconds per step."""
    delays, seed = experiment.delays, experiment.seed_of("delays")
    steps = (
        (client, trainer.count_steps(client, LocalWork(), count)) for client, count in trainer.data.num_examples.items()
    )
    mean = fmean(delays.expected(seed, client, taken) / taken for client, taken in steps)
    return ConstantDelays(mean=mean, unit="step", jitter=getattr(delays, "jitter", 0.0))


def _default_interval(until: Until, surroundings: SimulatedWorld, counts: Mapping[int, int]) -> float:
    """A fiftieth of the run, or where its length in seconds is not known, of what its updates would take if all
    clients, or a thousand of very many, worked at once.
    """
    if until.seconds is not None:
        return until.seconds / DEFAULT_EVALUATIONS
    assert until.updates is not None
    some = list(islice(counts, 1000))
    mean = fmean(surroundings.time_job(c, 0, LocalWork(), counts[c], 0.0).expected for c in some)
    return max(until.updates * mean / min(len(counts), MAX_ASSUMED_ACTIVE) / DEFAULT_EVALUATIONS, 1e-9)


def metric_directions(measured: Sequence[Metric]) -> dict[str, bool]:
    """Of each metric: is higher better?"""
    return {metric.name: metric.higher_is_better for metric in measured}


def with_direction(until: Until, measured: Sequence[Metric]) -> Until:
    """A file says which value of a metric is wanted; which way that is, the task says."""
    if until.target is None:
        return until
    return replace(until, target=until.target.with_direction(metric_directions(measured)))


@one_thread()  # strategies may compute before their first event
def build_engine(
    made: Setup,
    experiment: Experiment,
    *,
    trace: Trace | None = None,
    checkpoints: Checkpoints | None = None,
    checkpoint_every: float = 30.0,
    watch: Watch | None = None,
    worker: Worker | None = None,  # inline, if none is given
    memory: ClientMemory | None = None,
) -> VirtualEngine:
    world = made.world if memory is None else replace(made.world, store=memory.store)
    computing = worker or Inline(made.trainer)
    if (spoil := result_modifier(made.simulated_world.faults, made.layout)) is not None:
        computing = FaultyWorker(computing, spoil)
    return VirtualEngine(
        experiment.strategy,
        world,
        made.simulated_world,
        computing,
        until=with_direction(experiment.until, made.evaluator.metrics),
        evaluate=made.evaluator,
        client_means=made.client_tests,
        evaluate_every=made.evaluate_every,
        survey=made.surveyor,
        survey_every=experiment.survey.every,
        gate=Gate(made.layout, made.world.model.dtype, experiment.max_norm, _keeps_local_statistics(experiment)),
        trace=trace,
        checkpoints=checkpoints,
        checkpoint_every=checkpoint_every,
        timeout=experiment.timeout,
        watch=watch,
    )
