"""Presets that belong to no paper, and the lookup of all presets by name.

Except in scale-1m, all methods run with the same clients, delays and seeds. Delays are per local step, so a method that
requests fewer steps gets its update sooner, as FedCompass assumes. All other methods take the same number of steps per
job. `SETTINGS` lists where the settings of a method differ from its defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import get_args

from offbeat.core.errors import require, unknown_name
from offbeat.core.protocol import Strategy
from offbeat.core.strategies import REGISTRY, FedAsync, FedBuff
from offbeat.engine import Target, Until
from offbeat.experiment import Preset, Scale
from offbeat.experiment.spec import Experiment
from offbeat.papers import load_paper_preset, paper_preset_functions
from offbeat.scenario import Diurnal
from offbeat.scenario.data import Synthetic
from offbeat.scenario.delays import Uniform
from offbeat.scenario.models import Cnn, Linear, Mlp
from offbeat.scenario.partition import Dirichlet, Draws, Natural
from offbeat.training import Training

STEPS = 20
DELAYS = Uniform(low=0.5, high=5.0, jitter=0.05, unit="step")  # ten-fold spread: 10 to 100 s per job of 20 steps
COMMON = Experiment(
    delays=DELAYS, training=Training(optimizer="sgd", lr=0.05, batch=32, steps=STEPS), until=Until(seconds=1800.0)
)
# three well-known methods and those of the five papers, which takes about a minute
QUICKSTART_METHODS = ("fedavg", "fedasync", "fedbuff", "orthofl", "aso_fed", "fedpsa", "fed_ogd", "fedcompass")
BUFFER_SIZES = {"fedbuff": "k", "ca2fl": "k", "fedfa": "k", "fedpsa": "buffer"}  # settings that are buffer sizes

# settings that differ from the defaults of a method, with the reason
SETTINGS: dict[str, dict[str, object]] = {
    "fedbuff": {"k": 5},  # as FedPSA's buffer; K = 10 would be half of the clients
    "ca2fl": {"k": 5},  # as FedBuff
    "fedpac": {"lr": 0.05},  # the common rate for the body; its default of 0.01 is too small for this model
    "mifa": {"lr": 0.05},  # the common rate
    "gradma": {"lr_local": 0.05},  # the common rate
    # the paper's 0.001 is too small for this model; multiplied by r = 2 to 4 this is about the common 0.05
    "aso_fed": {"lr": 0.02, "lam": 0.5},
    # the common rate; equal values make an epoch in which all clients report a round of FedAvg
    "fed_ogd": {"lr_local": 0.05, "lr_global": 0.05},
    "fedcompass": {"q_min": STEPS // 5, "q_max": STEPS},  # the paper's ratio; its baselines take q_max steps
}


def configure_method(name: str, **changes: object) -> Strategy:
    """Return a method with `SETTINGS` and these changes."""
    method: Strategy = REGISTRY[name](**{**SETTINGS.get(name, {}), **changes})
    return method


def quickstart() -> Preset:
    """Compare eight methods on digits, with a model that trains five times as fast as the CNN of `digits`."""
    summary = "non-IID digits, 20 clients, ten-fold spread of speeds: a small model"
    preset = GENERAL_PRESETS["digits"]().varied(summary, name="quickstart", model=Mlp(hidden=(64,)))
    return replace(preset, compared=QUICKSTART_METHODS)


def compare_on_images(name: str, model: Cnn) -> Preset:
    """Compare all methods on a data set of images, divided among 20 clients."""
    division, target = Dirichlet(alpha=0.3), Target("acc", 0.9)
    experiment = replace(
        COMMON, name=name, data=name, model=model, clients=20, partition=division, target=target, evaluate_every=60.0
    )
    methods = {method: configure_method(method) for method in REGISTRY}
    return Preset(f"every method on non-IID {name}: 20 clients, ten-fold spread of speeds", experiment, methods)


def compare_at_hospitals(name: str, title: str, sites: int, batch: int, without: Collection[str] = ()) -> Preset:
    """Compare methods on small data that is split by nature.

    Patients, split and batch sizes are FLamby's. Rate, steps and speeds are those of `digits`, because the speeds of
    the sites are not known; buffers hold half of the sites.
    """
    model = Mlp(hidden=(16,))  # one layer more than FLamby's linear models: FedPAC needs a body and a head
    experiment = replace(COMMON, name=name, data=name, model=model, clients=sites, partition=Natural())
    experiment = replace(experiment, training=replace(COMMON.training, batch=batch), evaluate_every=30.0)
    methods = {
        method: configure_method(method, **({BUFFER_SIZES[method]: sites // 2} if method in BUFFER_SIZES else {}))
        for method in REGISTRY
        if method not in without
    }
    return Preset(f"every method on {title}, ten-fold spread of speeds", experiment, methods, seeds=10)


def million() -> Preset:
    """Simulate half an hour of a million devices with a daily rhythm, of which a thousand train at a time."""
    clients, active = 1_000_000, 1_000
    experiment = Experiment(
        name="scale-1m",
        data=Synthetic(iid=True, inputs=10),
        model=Linear(),
        clients=clients,
        partition=Draws(size=(10, 30), alpha=0.3),
        delays=Uniform(low=10.0, high=100.0),
        availability=Diurnal(begin=(0.0, 24.0)),  # in all time zones: a third is available at any time
        training=Training(optimizer="sgd", lr=0.1, batch=32, epochs=1),
        strategy=FedBuff(concurrency=active),
        until=Until(seconds=1800.0),
        evaluate_every=60.0,
    )
    methods = {"fedbuff": experiment.strategy, "fedasync": FedAsync(concurrency=active)}
    summary = "a million clients with a daily rhythm, 1,000 active at a time: what size alone costs"
    return Preset(summary, experiment, methods, seeds=1, reference="fedbuff")


GENERAL_PRESETS: dict[str, Callable[[], Preset]] = {
    "quickstart": quickstart,
    "digits": partial(compare_on_images, "digits", Cnn(channels=(16, 32))),
    "mnist": partial(compare_on_images, "mnist", Cnn(channels=(8, 16))),
    # 740 patients of four hospitals, 486 of them for training
    "heart-disease": partial(compare_at_hospitals, "heart-disease", "heart disease at 4 hospitals", sites=4, batch=4),
    # 1088 patients of six regions, 866 of them for training; FedPAC needs classes
    "tcga-brca": partial(
        compare_at_hospitals, "tcga-brca", "survival with breast cancer in 6 regions", 6, 8, without=("fedpac",)
    ),
    "scale-1m": million,
}


def names() -> list[str]:
    """List the names of all presets: the general ones, then paper by paper."""
    return [*sorted(GENERAL_PRESETS), *paper_preset_functions()]


def scales(name: str) -> list[str]:
    """List the scales of a preset; a general preset has one scale without a name."""
    return list(get_args(Scale)) if name in paper_preset_functions() else []


def load(name: str, scale: Scale | None = None) -> Preset:
    """Return the preset with this name; the default scale of a paper's preset is the paper's."""
    if scale is not None and scale not in get_args(Scale):
        raise unknown_name("scale", scale, get_args(Scale))
    if name in GENERAL_PRESETS:
        require(scale is None, f"preset {name!r} has only one scale: omit {scale!r}")
        return GENERAL_PRESETS[name]()
    if name not in paper_preset_functions():
        raise unknown_name("preset", name, names())
    return load_paper_preset(name, scale)
