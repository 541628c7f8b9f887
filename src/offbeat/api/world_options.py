"""What `simulate` and `compare` are asked for alike: a world, its clients and how they train, checked once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from offbeat.api import arguments
from offbeat.core.protocol import Strategy
from offbeat.experiment.scripted import client_datasets
from offbeat.experiment.scripted.client_datasets import ClientDatasets
from offbeat.experiment.scripted.scripted_run import ScriptedRun, make_placeholder
from offbeat.experiment.spec.config import Experiment
from offbeat.scenario.availability import Always
from offbeat.scenario.network import Instant
from offbeat.scenario.streaming import Static
from offbeat.training.tasks import Loss, Task


@dataclass(frozen=True, eq=False)
class Asked:
    experiment: Experiment  # but for strategy, seed and model
    holdings: ClientDatasets
    loss: Task | Loss | None

    def given(self, strategy: Strategy, seed: int, module: nn.Module) -> ScriptedRun:
        model = make_placeholder(type(module).__name__, {"parameters": sum(p.numel() for p in module.parameters())})
        one = replace(self.experiment, strategy=strategy, seed=seed, model=model)
        return ScriptedRun(one, module, self.holdings, self.loss)


def asked(
    module: nn.Module,
    clients: Any,
    *,
    name: str,
    delays: Any,
    network: Any,
    availability: Any,
    faults: Any,
    streaming: Any,
    until: Any,
    target: Any,
    test: Any,
    tests: Any,
    training: Any,
    loss: Any,
    evaluate_every: Any,
    max_norm: Any,
) -> Asked:
    """`module`: one of those that are trained."""
    held, descended = (
        client_datasets.read_client_datasets(clients, test, tests, arguments.precision(module)),
        arguments.loss(loss),
    )
    own: dict[str, Any] = {"data": make_placeholder("own", {"examples": sum(len(y) for _, y in held.train.values())})}
    own |= {"partition": make_placeholder("given")}
    own |= (
        {}
        if descended is None
        else {"loss": make_placeholder(getattr(descended, "__name__", type(descended).__name__))}
    )
    experiment = Experiment(
        name=arguments.text(name, "name", "my study"),
        clients=len(held.train),
        delays=arguments.delays(delays, held),
        network=arguments.law(network, "network", Instant()),
        availability=arguments.law(availability, "availability", Always()),
        faults=arguments.faults(faults),
        streaming=arguments.law(streaming, "streaming", Static()),
        training=arguments.training(training),
        until=arguments.until(until),
        target=arguments.target(target),
        evaluate="test" if held.tests is None or held.test is not None else "clients",
        evaluate_every=arguments.positive(evaluate_every, "evaluate_every"),
        max_norm=arguments.positive(max_norm, "max_norm"),
        **own,
    )
    return Asked(experiment, held, descended)
