"""The newcomer's experiment: non-IID digits, twenty clients, a ten-fold spread of speeds, about a minute on two cores."""

from __future__ import annotations

from offbeat.client.training import Training
from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.engines.until import Target, Until
from offbeat.experiment.config import Experiment
from offbeat.presets import Preset
from offbeat.scenario.delays import Uniform
from offbeat.scenario.models import Cnn
from offbeat.scenario.partition import Dirichlet


def quickstart() -> Preset:
    """Who wastes less time when the slowest client takes ten times as long as the fastest?"""
    experiment = Experiment(
        name="quickstart",
        data="digits",
        model=Cnn(channels=(16, 32)),
        clients=20,
        partition=Dirichlet(alpha=0.3),
        delays=Uniform(low=10.0, high=100.0, jitter=0.05),  # seconds a job
        training=Training(optimizer="sgd", lr=0.05, batch=32, epochs=2),
        strategy=FedAsync(),
        until=Until(seconds=3600.0),
        target=Target("acc", 0.9),
        evaluate_every=60.0,
    )
    methods = {"fedavg": FedAvg(), "fedasync": FedAsync(), "fedbuff": FedBuff(k=5)}
    return Preset("non-IID digits, 20 clients, ten-fold spread of speeds", experiment, methods)
