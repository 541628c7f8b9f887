"""Asynchronous federated learning for PyTorch that you can read, simulate and deploy.

    import offbeat
    result = offbeat.simulate(model, clients=[(x, y), ...], strategy=offbeat.FedBuff(k=5), until="3600s")
    table = offbeat.compare(model, clients, strategies=["fedavg", offbeat.FedBuff(k=5)], seeds=3, until="3600s")

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names once more, for type checkers and editors
    from offbeat import presets as presets
    from offbeat import testing as testing
    from offbeat.api.run_comparison import Compared as Compared
    from offbeat.api.run_comparison import compare as compare
    from offbeat.api.run_simulation import repeat as repeat
    from offbeat.api.run_simulation import simulate as simulate
    from offbeat.api.simulation_result import Simulation as Simulation
    from offbeat.core.errors import OffbeatError as OffbeatError
    from offbeat.core.strategies.aso_fed import AsoFed as AsoFed
    from offbeat.core.strategies.ca2fl import CA2FL as CA2FL
    from offbeat.core.strategies.fed_ogd import FedOGD as FedOGD
    from offbeat.core.strategies.fedadam import FedAdam as FedAdam
    from offbeat.core.strategies.fedasync import FedAsync as FedAsync
    from offbeat.core.strategies.fedat import FedAT as FedAT
    from offbeat.core.strategies.fedavg import FedAvg as FedAvg
    from offbeat.core.strategies.fedavgm import FedAvgM as FedAvgM
    from offbeat.core.strategies.fedbuff import FedBuff as FedBuff
    from offbeat.core.strategies.fedcompass import FedCompass as FedCompass
    from offbeat.core.strategies.fedfa import FedFa as FedFa
    from offbeat.core.strategies.fedpac import FedPAC as FedPAC
    from offbeat.core.strategies.fedprox import FedProx as FedProx
    from offbeat.core.strategies.fedpsa import FedPSA as FedPSA
    from offbeat.core.strategies.flanp import FLANP as FLANP
    from offbeat.core.strategies.gradma import GradMA as GradMA
    from offbeat.core.strategies.local import Local as Local
    from offbeat.core.strategies.mifa import Mifa as Mifa
    from offbeat.core.strategies.orthofl import OrthoFL as OrthoFL
    from offbeat.core.strategies.pooled import Global as Global
    from offbeat.core.strategies.safa import Safa as Safa
    from offbeat.engine.progress import Status as Status
    from offbeat.experiment.spec.config import Experiment as Experiment
    from offbeat.training.trainer import Training as Training

_PUBLIC = {
    "simulate": "offbeat.api.run_simulation",
    "Simulation": "offbeat.api.simulation_result",
    "repeat": "offbeat.api.run_simulation",
    "compare": "offbeat.api.run_comparison",
    "Compared": "offbeat.api.run_comparison",
    "Status": "offbeat.engine.progress",
    "Experiment": "offbeat.experiment.spec.config",
    "Training": "offbeat.training.trainer",
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

_PACKAGES = ("presets", "testing")

__version__ = "0.1.0.dev0"
__all__ = sorted([*_PUBLIC, *_PACKAGES, "__version__"])

if not TYPE_CHECKING:  # to a checker every name would be there, and be anything

    def __getattr__(name: str) -> Any:
        if name in _PUBLIC:
            return getattr(importlib.import_module(_PUBLIC[name]), name)
        if name in _PACKAGES:
            return importlib.import_module(f"offbeat.{name}")
        raise AttributeError(f"module 'offbeat' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
