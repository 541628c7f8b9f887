"""Asynchronous federated learning for PyTorch that you can read, simulate and deploy.

    import offbeat
    result = offbeat.simulate(model, clients=[(x, y), ...], strategy=offbeat.FedBuff(k=5), until="3600s")

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC = {
    "simulate": "offbeat.experiment.simulate",
    "Simulation": "offbeat.experiment.simulate",
    "Experiment": "offbeat.experiment.config",
    "Training": "offbeat.client.training",
    "FedAvg": "offbeat.core.strategies.fedavg",
    "FedProx": "offbeat.core.strategies.fedprox",
    "FedAdam": "offbeat.core.strategies.fedadam",
    "FedAvgM": "offbeat.core.strategies.fedavgm",
    "FedAsync": "offbeat.core.strategies.fedasync",
    "FedBuff": "offbeat.core.strategies.fedbuff",
    "CA2FL": "offbeat.core.strategies.ca2fl",
    "FedAT": "offbeat.core.strategies.fedat",
    "FedFa": "offbeat.core.strategies.fedfa",
    "FedPAC": "offbeat.core.strategies.fedpac",
    "Safa": "offbeat.core.strategies.safa",
    "Mifa": "offbeat.core.strategies.mifa",
    "FLANP": "offbeat.core.strategies.flanp",
    "GradMA": "offbeat.core.strategies.gradma",
    "Local": "offbeat.core.strategies.local",
    "Global": "offbeat.core.strategies.pooled",
    "OrthoFL": "offbeat.core.strategies.orthofl",
    "AsoFed": "offbeat.core.strategies.aso_fed",
    "FedPSA": "offbeat.core.strategies.fedpsa",
    "FedOGD": "offbeat.core.strategies.fed_ogd",
    "FedCompass": "offbeat.core.strategies.fedcompass",
    "OffbeatError": "offbeat.core.errors",
}

__version__ = "0.1.0.dev0"
__all__ = sorted([*_PUBLIC, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'offbeat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
