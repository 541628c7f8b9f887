"""The newcomer's experiment: non-IID digits, twenty clients, a ten-fold spread of speeds, about a minute on two cores."""

from __future__ import annotations

from offbeat.client.training import Training
from offbeat.engines.until import Target, Until
from offbeat.experiment.config import Experiment
from offbeat.presets import Preset
from offbeat.presets.methods import METHODS, variant
from offbeat.scenario.delays import Uniform
from offbeat.scenario.models import Cnn
from offbeat.scenario.partition import Dirichlet

STEPS = 5


def quickstart() -> Preset:
    """Who wastes less time when the slowest client takes ten times as long as the fastest?"""
    experiment = Experiment(
        name="quickstart",
        data="digits",
        model=Cnn(channels=(8, 16)),
        clients=20,
        partition=Dirichlet(alpha=0.3),
        delays=Uniform(low=2.0, high=20.0, jitter=0.05, unit="step"),  # 10 to 100 seconds a job
        training=Training(optimizer="sgd", lr=0.05, batch=32, steps=STEPS),
        until=Until(seconds=1800.0),
        target=Target("acc", 0.8),
        evaluate_every=60.0,
    )
    methods = {name: variant(name) for name in METHODS} | {"fedcompass": variant("fedcompass", q_min=1, q_max=STEPS)}
    return Preset("non-IID digits, 20 clients, ten-fold spread of speeds", experiment, methods)
