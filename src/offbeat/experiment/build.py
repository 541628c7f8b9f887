"""From an experiment to an engine that is ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn

from offbeat.client.data import ClientData
from offbeat.client.evaluation import Evaluator
from offbeat.client.sensitivity import make_probe
from offbeat.client.task import Loss, Task, as_task
from offbeat.client.training import Trainer
from offbeat.core.errors import ConfigError, unknown
from offbeat.core.protocol import LocalWork, World
from offbeat.core.vector import Binding, Layout, flatten
from offbeat.engines.checkpoint import Checkpoints
from offbeat.engines.gate import Gate
from offbeat.engines.trace import Trace
from offbeat.engines.until import Until
from offbeat.engines.virtual import VirtualEngine
from offbeat.engines.workers.inline import Inline
from offbeat.experiment.config import Experiment, is_pooled
from offbeat.scenario.data import DATASETS
from offbeat.scenario.delays import Constant
from offbeat.scenario.surroundings import SimulatedWorld

POINTS = 50  # evaluations in a run whose grid is not given


@dataclass(frozen=True)
class Setup:
    """Everything about an experiment that does not depend on when or where it runs."""

    module: nn.Module
    world: World
    surroundings: SimulatedWorld
    trainer: Trainer
    evaluator: Evaluator
    every: float

    @property
    def layout(self) -> Layout:
        return self.world.layout

    def state_dict(self, model: Tensor) -> dict[str, Tensor]:
        """The whole module with this model in it, frozen parameters and all; no tensor shares memory."""
        binding = Binding(deepcopy(self.module))  # the module may be the user's own
        with torch.no_grad():
            binding.put(model)
        return {name: t.detach().clone().contiguous() for name, t in binding.module.state_dict().items()}


def setup(experiment: Experiment) -> Setup:
    data = DATASETS[experiment.data]()
    parts = experiment.partition.split(data.y_train, experiment.clients, experiment.seed)
    rows = [experiment.streaming.order(experiment.seed, client, part) for client, part in enumerate(parts)]
    clients = ClientData.shared(data.x_train, data.y_train, rows, num_classes=data.num_classes)
    module = experiment.model.build(data.input_shape, data.num_classes or 1, experiment.seed)
    evaluator = Evaluator(module, data.x_test, data.y_test)
    return assemble(module, clients, evaluator, experiment)


def assemble(
    module: nn.Module, clients: ClientData, evaluator: Evaluator, experiment: Experiment, task: Task | Loss | None = None
) -> Setup:
    """Put a module and its clients' data into the experiment's world."""
    _check_targets(experiment, [metric.name for metric in evaluator.metrics])
    task = as_task(task, clients.labels)
    sketcher = getattr(experiment.strategy, "sketcher", None)  # a method that compares models by what they do
    probe = None if sketcher is None else make_probe(sketcher, module, clients, task, experiment.seed)
    trainer, delays = Trainer(module, clients, experiment.training, task, probe), experiment.delays
    if is_pooled(experiment.strategy):
        delays = _mean_speed(trainer, experiment)
        clients = clients.merged()
        trainer = Trainer(module, clients, experiment.training, task, probe)
    counts = clients.num_examples
    seed, streaming = experiment.seed, experiment.streaming
    surroundings = SimulatedWorld(delays=delays, counts=counts, seed=seed, steps=trainer.steps, streaming=streaming)
    arrived = {client: surroundings.num_examples(client, 0, 0.0) for client in counts}  # what clients register with
    world = World(model=flatten(module), layout=Layout.of(module), clients=arrived, seed=seed, probe=probe)
    every = experiment.evaluate_every or _grid(experiment.until, surroundings, counts)
    return Setup(module, world, surroundings, trainer, evaluator, every)


def _check_targets(experiment: Experiment, measured: list[str]) -> None:
    """A misspelt metric would only look like a target that is never reached."""
    for target in (experiment.until.target, experiment.target):
        if target is not None and target.metric not in measured:
            raise ConfigError(f"target {target}: {unknown('metric', target.metric, measured)}")


def _mean_speed(trainer: Trainer, experiment: Experiment) -> Constant:
    """Of a machine that is as fast as the mean client, in seconds per step."""
    delays, seed = experiment.delays, experiment.seed
    counts = trainer.data.num_examples
    steps = {client: trainer.steps(client, LocalWork(), count) for client, count in counts.items()}
    mean = fmean(delays.expected(seed, client, steps[client]) / steps[client] for client in counts)
    return Constant(mean=mean, unit="step", jitter=getattr(delays, "jitter", 0.0))


def _grid(until: Until, surroundings: SimulatedWorld, counts: Mapping[int, int]) -> float:
    """A fiftieth of the run, or where its length in seconds is not known, of what its updates would take one by one."""
    if until.seconds is not None:
        return until.seconds / POINTS
    assert until.updates is not None
    some = list(counts)[:1000]
    mean = fmean(surroundings.trip(c, 0, LocalWork(), counts[c], 0.0).expected for c in some)
    return max(until.updates * mean / len(counts) / POINTS, 1e-9)


def engine(
    made: Setup,
    experiment: Experiment,
    *,
    trace: Trace | None = None,
    checkpoints: Checkpoints | None = None,
    checkpoint_every: float = 30.0,
    watch: Callable[[VirtualEngine], None] | None = None,
) -> VirtualEngine:
    return VirtualEngine(
        experiment.strategy,
        made.world,
        made.surroundings,
        Inline(made.trainer),
        until=experiment.until,
        evaluate=made.evaluator,
        every=made.every,
        gate=Gate(made.layout, made.world.model.dtype, experiment.max_norm),
        trace=trace,
        checkpoints=checkpoints,
        checkpoint_every=checkpoint_every,
        timeout=experiment.timeout,
        watch=watch,
    )
