"""Real hospitals and regions, with the patients they have: every method on data that is small and split by nature.

Patients, split and batches are FLamby's. Nothing else was chosen for these data: rate, steps and the spread of speeds
are those of `digits`, buffers hold half of the sites. How fast each site is nobody recorded; a seed draws it.
"""

from __future__ import annotations

from collections.abc import Collection

from offbeat.engine.until import Until
from offbeat.experiment.spec.config import Experiment
from offbeat.presets import Preset
from offbeat.presets.method_settings import METHODS, STEPS, variant
from offbeat.scenario.delays import Uniform
from offbeat.scenario.models import Mlp
from offbeat.scenario.partition import Natural
from offbeat.training.trainer import Training

BUFFERED = {"fedbuff": "k", "ca2fl": "k", "fedfa": "k", "fedpsa": "buffer"}


def heart_disease() -> Preset:
    """Sick or not, 740 patients of four hospitals, 486 of them to train on."""
    return _preset("heart-disease", "heart disease at 4 hospitals", sites=4, batch=4)


def tcga_brca() -> Preset:
    """Who dies first, 1088 patients of six regions, 866 of them to train on. FedPAC is not there: it needs classes."""
    return _preset("tcga-brca", "survival with breast cancer in 6 regions", sites=6, batch=8, without=("fedpac",))


def _preset(name: str, title: str, sites: int, batch: int, without: Collection[str] = ()) -> Preset:
    experiment = Experiment(
        name=name,
        data=name,
        model=Mlp(hidden=(16,)),  # a layer more than FLamby's linear models: FedPAC needs a body and a head
        clients=sites,
        partition=Natural(),
        delays=Uniform(low=0.5, high=5.0, jitter=0.05, unit="step"),
        training=Training(optimizer="sgd", lr=0.05, batch=batch, steps=STEPS),
        until=Until(seconds=1800.0),
        evaluate_every=30.0,
    )
    methods = {
        method: variant(method, **({BUFFERED[method]: sites // 2} if method in BUFFERED else {}))
        for method in METHODS
        if method not in without
    }
    return Preset(f"every method on {title}, ten-fold spread of speeds", experiment, methods, seeds=10)
