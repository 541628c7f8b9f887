"""All methods on the same clients, delays and seeds: the settings behind the tables in docs/strategies.

Delays are per local step, so that a method which asks for fewer steps gets its answer sooner (FedCompass's premise).
Everyone else takes the same number of steps a job; where a paper's own learning rates would hardly move these small
models, the preset says so.
"""

from __future__ import annotations

from typing import Any

from offbeat.core.strategies import REGISTRY
from offbeat.engine.until import Target, Until
from offbeat.experiment.spec.config import Experiment
from offbeat.presets import Preset
from offbeat.scenario.delays import Uniform
from offbeat.scenario.models import Cnn
from offbeat.scenario.partition import Dirichlet
from offbeat.training.trainer import Training

STEPS = 20


def digits() -> Preset:
    """All methods on non-IID digits."""
    return _preset("digits", "digits", Cnn(channels=(16, 32)), seconds=1800.0, target=0.9)


def mnist() -> Preset:
    """All methods on non-IID MNIST."""
    return _preset("mnist", "mnist", Cnn(channels=(8, 16)), seconds=1800.0, target=0.9)


def _preset(name: str, data: str, model: Cnn, seconds: float, target: float) -> Preset:
    experiment = Experiment(
        name=name,
        data=data,
        model=model,
        clients=20,
        partition=Dirichlet(alpha=0.3),
        delays=Uniform(low=0.5, high=5.0, jitter=0.05, unit="step"),  # ten-fold: 10 to 100 s a job of 20 steps
        training=Training(optimizer="sgd", lr=0.05, batch=32, steps=STEPS),
        until=Until(seconds=seconds),
        target=Target("acc", target),
        evaluate_every=60.0,
    )
    methods = {method: variant(method) for method in METHODS}
    return Preset(f"every method on non-IID {name}: 20 clients, ten-fold spread of speeds", experiment, methods)


def variant(name: str, *, rate: float = 1.0, **settings: Any) -> Any:
    """A method as it is set here, with changes; `rate` scales the learning rates of its clients that are its own."""
    own = SETTINGS.get(name, {})
    scaled = {key: value * rate if key in RATES.get(name, "").split() else value for key, value in own.items()}
    return REGISTRY[name](**{**scaled, **settings})


# What differs from a method's own defaults here, and why.
SETTINGS: dict[str, dict[str, Any]] = {
    "fedbuff": {"k": 5},  # as FedPSA's buffer; ten of twenty clients would be half a round
    "ca2fl": {"k": 5},  # as FedBuff's
    "fedpac": {"lr": 0.05},  # everyone's rate for the body; its own 0.01 hardly moves this model
    "mifa": {"lr": 0.05},  # everyone's rate
    "gradma": {"lr_local": 0.05},  # everyone's rate
    # the paper's 0.001 hardly moves this model; times r = 2 to 4 this is everyone's 0.05
    "aso_fed": {"lr": 0.02, "lam": 0.5},
    # everyone's rate; equal, so that an epoch in which all report is a round of FedAvg
    "fed_ogd": {"lr_local": 0.05, "lr_global": 0.05},
    "fedcompass": {"q_min": STEPS // 5, "q_max": STEPS},  # the paper's ratio; its baselines take q_max steps
}
# which of these are rates of clients
RATES = {"fedpac": "lr", "mifa": "lr", "gradma": "lr_local", "aso_fed": "lr", "fed_ogd": "lr_local lr_global"}
METHODS = tuple(REGISTRY)

# Each method and its ablations, as the tables list them: label -> changes. A label begins with the method's name.
_CHANGES: dict[str, dict[str, Any]] = {
    "fedprox mu 1": {"mu": 1.0},
    "fedadam lr 0.03": {"lr": 0.03},
    "fedavgm mu 0.5": {"mu": 0.5},
    "fedasync weighted deltas": {"mode": "delta", "client_weight": "equal"},
    "fedbuff w/o discount": {"staleness": "constant"},
    "fedbuff weighted sum": {"client_weight": "equal"},
    "fedbuff excluding": {"exclude_buffered": True},
    "ca2fl lr 0.5": {"lr": 0.5},
    "fedat smooth": {"smooth": 1},
    "fedat ratio 2": {"ratio": 2.0},
    "fedfa deltas": {"queue": "deltas"},
    "fedpac own heads": {"combine": False},
    "safa lag 1": {"lag": 1},
    "mifa ticks": {"epoch": 50.0},
    "flanp from five": {"n0": 5},
    "gradma S": {"worker": False},
    "orthofl w/o calibration": {"calibrate": False},
    "orthofl w/o moving average": {"moving_average": False},
    "orthofl pairwise": {"projection": "pairwise"},
    "orthofl chain": {"reference": "chain", "first_alpha": 1.0},
    "aso_fed -D": {"dynamic_step": False},
    "aso_fed -F": {"feature": "off"},
    "aso_fed literal features": {"feature": "literal"},
    "aso_fed alg2 order": {"h_order": "alg2"},
    "fedpsa w/o T": {"thermometer": False},
    "fedpsa w/o S": {"signal": "parameters"},
    "fedpsa w/o T&S": {"thermometer": False, "signal": "parameters"},
    "fedpsa batch Fisher": {"fisher": "batch"},
    "fedpsa real calibration": {"calibration": "real"},
    "fed_ogd w/o cache": {"cache": False},
    "fed_ogd always": {"project": "always"},
    "fed_ogd sum of means": {"combine": "sum_of_means"},
    "fed_ogd differences": {"upload": "difference"},
    "fedcompass +M": {"momentum": True},
    "fedcompass +N": {"normalized": True},
    "fedcompass equal weights": {"weights": "equal"},
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    label: (name, changes)
    for name in METHODS
    for label, changes in [(name, {}), *((label, c) for label, c in _CHANGES.items() if label.split()[0] == name)]
}
