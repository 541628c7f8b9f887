"""Very many clients: a world whose size is the point, with a model so small that little else costs anything."""

from __future__ import annotations

from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.engine.until import Until
from offbeat.experiment.spec.config import Experiment
from offbeat.presets import Preset
from offbeat.scenario.availability import Diurnal
from offbeat.scenario.data.synthetic import Synthetic
from offbeat.scenario.delays import Uniform
from offbeat.scenario.models import Linear
from offbeat.scenario.partition import Draws
from offbeat.training.trainer import Training

CLIENTS, AT_WORK = 1_000_000, 1_000


def million() -> Preset:
    """Half an hour of a million devices, each there for some hours of the day; a thousand at work at once."""
    experiment = Experiment(
        name="scale-1m",
        data=Synthetic(iid=True, inputs=10),
        model=Linear(),
        clients=CLIENTS,
        partition=Draws(size=(10, 30), alpha=0.3),
        delays=Uniform(low=10.0, high=100.0),
        availability=Diurnal(begin=(0.0, 24.0)),  # all round the world: a third is there at any time
        training=Training(optimizer="sgd", lr=0.1, batch=32, epochs=1),
        strategy=FedBuff(concurrency=AT_WORK),
        until=Until(seconds=1800.0),
        evaluate_every=60.0,
    )
    methods = {"fedbuff": experiment.strategy, "fedasync": FedAsync(concurrency=AT_WORK)}
    summary = "a million clients who come and go with the day, 1,000 at work: what size alone costs"
    return Preset(summary, experiment, methods, seeds=1, reference="fedbuff")
